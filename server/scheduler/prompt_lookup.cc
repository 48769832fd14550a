// SPDX-License-Identifier: Apache-2.0
#include "scheduler/prompt_lookup.h"

#include <algorithm>
#include <cstddef>

namespace normserve::scheduler {

std::vector<uint32_t> LookUpNext(absl::Span<const uint32_t> tokens, uint32_t count) {
  const size_t size = tokens.size();
  size_t best_length = kShortestMatch - 1, best_end = 0;
  for (size_t end = size - std::min<size_t>(size, 1); end >= kShortestMatch; --end) {
    size_t length = 0;
    while (length < kLongestMatch && length < end &&
           tokens[end - 1 - length] == tokens[size - 1 - length]) {
      ++length;
    }
    if (length <= best_length) continue;
    best_length = length;
    best_end = end;
    if (length == kLongestMatch) break;
  }
  if (best_end == 0) return {};
  const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(best_end);
  return {first, first + static_cast<std::ptrdiff_t>(std::min<size_t>(count, size - best_end))};
}

}  // namespace normserve::scheduler
