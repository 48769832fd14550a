// SPDX-License-Identifier: Apache-2.0
// `normserve-client score`: log-probabilities of given texts or context/continuation pairs, with
// perplexity, as a table or JSON.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/request_flags.h"

namespace normserve::client {

struct ScoreOptions {
  ConnectionOptions connection;
  std::vector<std::string> texts;
  std::string file;   // one whole text; "-" is standard input
  std::string pairs;  // JSONL, see ParseScoreItems
  uint32_t top_logprobs = 0;
  std::optional<bool> add_special_tokens;
  uint32_t batch = 64;  // items per call
  bool tokens = false;  // a line per token
  bool json = false;
};

CLI::App* AddScoreCommand(CLI::App* app, ScoreOptions* options);

// One item per non-empty line: {"context": "...", "continuation": "..."}, the two as id lists, or
// {"text": "..."} or {"token_ids": [...]}. The error names the line.
absl::StatusOr<std::vector<v1::ScoreItem>> ParseScoreItems(const std::string& jsonl);

absl::Status RunScore(const ScoreOptions& options);

}  // namespace normserve::client
