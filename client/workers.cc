// SPDX-License-Identifier: Apache-2.0
// See workers.h.
#include "client/workers.h"

#include <algorithm>

namespace normserve::client {

int64_t Workers::NextSendNs() const {
  if (fresh_ > 0) return 0;
  return resting_.empty() ? INT64_MAX : resting_.top().first;
}

uint32_t Workers::Take() {
  if (fresh_ > 0) {
    --fresh_;
    return 0;
  }
  const uint32_t refusals = resting_.top().second;
  resting_.pop();
  return refusals;
}

void Workers::Release(uint32_t refusals, absl::StatusCode end, int64_t now_ns) {
  if (end == absl::StatusCode::kResourceExhausted || end == absl::StatusCode::kUnavailable) {
    resting_.emplace(now_ns + RestNs(refusals), refusals + 1);
  } else {
    ++fresh_;
  }
}

int64_t Workers::RestNs(uint32_t refusals) {
  // The exponent is capped before the shift: a long run may be refused any number of times.
  const int64_t rest = std::min(kMostRestNs, kFirstRestNs << std::min(refusals, 10u));
  // By hand: the standard distributions differ between libraries.
  return rest - static_cast<int64_t>(random_() % static_cast<uint64_t>(rest / 2));
}

}  // namespace normserve::client
