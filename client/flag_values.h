// SPDX-License-Identifier: Apache-2.0
// Values of flags and prompt files that need more than one number: ranges, pairs, id lists.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace normserve::client {

// Inclusive.
struct TokenRange {
  uint32_t low = 0;
  uint32_t high = 0;
};

// "128" or "16:512", 1 <= low <= high <= 2^24. `flag` is for the error text.
absl::StatusOr<TokenRange> ParseTokenRange(std::string_view flag, std::string_view text);

// "3,17,42": decimal ids, blanks allowed around them.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view flag, std::string_view text);

// Each "ID=VALUE"; ranges are the server's to check.
absl::StatusOr<std::map<uint32_t, float>> ParseLogitBias(const std::vector<std::string>& entries);

// The whole of a file; "-" is standard input.
absl::StatusOr<std::string> ReadAll(const std::string& path);

}  // namespace normserve::client
