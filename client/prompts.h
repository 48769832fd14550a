// SPDX-License-Identifier: Apache-2.0
// Where a load run's prompts come from: a file of texts or JSON lines, or random token ids of given
// lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/flag_values.h"

namespace normserve::client {

struct Prompt {
  std::string text;  // used when ids is empty
  std::vector<uint32_t> ids;
  std::optional<uint32_t> max_new_tokens;
};

// A file's content: one prompt per non-empty line, or, when its first non-blank character is '{',
// JSON lines {"text" or "prompt": "..." | "token_ids": [...], optional "max_new_tokens": N}. The
// error names the line.
absl::StatusOr<std::vector<Prompt>> ParsePrompts(const std::string& content);

struct SyntheticSpec {
  TokenRange prompt_tokens{128, 128};
  TokenRange output_tokens{128, 128};
  uint32_t count = 256;  // distinct prompts; a longer run starts over
  uint32_t vocab_size = 0;
  uint64_t seed = 0;
};

// Uniform lengths and ids; the same spec gives the same prompts everywhere.
std::vector<Prompt> SyntheticPrompts(const SyntheticSpec& spec);

}  // namespace normserve::client
