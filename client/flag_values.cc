// SPDX-License-Identifier: Apache-2.0
// See flag_values.h.
#include "client/flag_values.h"

#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/string_view.h"

namespace normserve::client {
namespace {

constexpr uint32_t kMostTokens = 1u << 24;

absl::StatusOr<uint32_t> ParseUint(std::string_view flag, absl::string_view text) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(base::Absl(flag), ": '", text, "' is not a whole number in [0, 4294967295]"));
  }
  return value;
}

}  // namespace

absl::StatusOr<TokenRange> ParseTokenRange(std::string_view flag, std::string_view text) {
  const std::vector<std::string> ends = absl::StrSplit(base::Absl(text), ':');
  if (ends.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(base::Absl(flag), ": '", base::Absl(text), "' is not N or LOW:HIGH"));
  }
  TokenRange range;
  NS_ASSIGN_OR_RETURN(range.low, ParseUint(flag, ends.front()));
  NS_ASSIGN_OR_RETURN(range.high, ParseUint(flag, ends.back()));
  if (range.low < 1 || range.low > range.high || range.high > kMostTokens) {
    return absl::InvalidArgumentError(absl::StrCat(base::Absl(flag), ": '", base::Absl(text),
                                                   "' must be 1 <= LOW <= HIGH <= ", kMostTokens));
  }
  return range;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view flag, std::string_view text) {
  std::vector<uint32_t> ids;
  for (const absl::string_view part : absl::StrSplit(base::Absl(text), ',')) {
    NS_ASSIGN_OR_RETURN(const uint32_t id, ParseUint(flag, part));
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::map<uint32_t, float>> ParseLogitBias(const std::vector<std::string>& entries) {
  std::map<uint32_t, float> bias;
  for (const std::string& entry : entries) {
    const std::vector<std::string> parts = absl::StrSplit(entry, '=');
    float value = 0;
    if (parts.size() != 2 || !absl::SimpleAtof(parts[1], &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias: '", entry, "' is not ID=VALUE"));
    }
    NS_ASSIGN_OR_RETURN(const uint32_t id, ParseUint("--logit-bias", parts[0]));
    bias[id] = value;
  }
  return bias;
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream file(path, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot read file '", path, "'"));
  }
  return content;
}

}  // namespace normserve::client
