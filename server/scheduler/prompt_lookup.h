// SPDX-License-Identifier: Apache-2.0
// Guesses at a sequence's next tokens, for speculative decoding without a second model: what followed
// the last time that its latest tokens occurred (prompt lookup).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace normserve::scheduler {

// Lengths of the suffix of `tokens` that is looked up; longer matches guess better.
inline constexpr uint32_t kLongestMatch = 4;
inline constexpr uint32_t kShortestMatch = 2;

// At most `count` tokens that followed the latest earlier occurrence of the longest suffix found; empty
// where there is none. Time grows with the length of `tokens`.
std::vector<uint32_t> LookUpNext(absl::Span<const uint32_t> tokens, uint32_t count);

}  // namespace normserve::scheduler
