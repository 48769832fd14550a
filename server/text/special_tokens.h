// SPDX-License-Identifier: Apache-2.0
// What tokenizer_config.json and special_tokens_map.json say about special tokens. Private to text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace normserve::text {

struct SpecialTokens {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  // Absent: what the tokenizer's own file does.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  // Texts of all tokens that the files call special (bos and eos too).
  std::vector<std::string> all;
  // Texts in tokenizer_config.json's added_tokens_decoder, as far as they can be read: only a hint.
  std::vector<std::string> added;
};

// Files that are not there say nothing. Errors name the file and the key.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& directory);

// The whole file, which must be a regular one of at most 512 MiB. Errors name it.
absl::StatusOr<std::string> ReadFile(const std::string& path);
bool FileExists(const std::string& path);

// JSON list of strings.
std::string JsonList(const std::vector<std::string>& texts);

}  // namespace normserve::text
