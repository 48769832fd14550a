// SPDX-License-Identifier: Apache-2.0
// The flags that describe a generation, shared by `generate` and `load`. A flag that is not given
// leaves its field absent, so that the server's own default holds; ranges are the server's to
// check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/connection.h"
#include "normserve/v1/generation.pb.h"

namespace normserve::client {

struct RequestFlags {
  std::optional<float> temperature, top_p, min_p;
  std::optional<uint32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint32_t> max_new_tokens, min_new_tokens;
  std::vector<std::string> stop_strings;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_string = false;
  bool logprobs = false;
  std::optional<uint32_t> top_logprobs;
  bool keep_special_tokens = false;
  bool omit_text = false;
  std::optional<bool> add_special_tokens;
  std::optional<uint32_t> truncate_prompt_tokens;
  std::optional<int32_t> priority;
};

void AddConnectionFlags(CLI::App* app, ConnectionOptions* options);
// --add-special-tokens and --no-add-special-tokens; `value` stays absent when neither is given.
void AddSpecialTokensFlags(CLI::App* app, const char* group, std::optional<bool>* value);
void AddRequestFlags(CLI::App* app, RequestFlags* flags);

// Fills everything but model and prompt. INVALID_ARGUMENT names the flag.
absl::Status ApplyRequestFlags(const RequestFlags& flags, v1::GenerateRequest* request);

}  // namespace normserve::client
