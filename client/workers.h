// SPDX-License-Identifier: Apache-2.0
// Who may send next in a closed loop: N workers with one call in flight each. A worker whose call
// was refused rests before its next one, longer after each refusal in a row, so that a server that
// is full or away is asked again a few times a second and not as fast as it can say no.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace normserve::client {

// The rest after the first refusal; it doubles with each further one, up to the most. A random part
// of up to half of it is taken off, so that workers refused together do not come back together.
inline constexpr int64_t kFirstRestNs = 10'000'000;
inline constexpr int64_t kMostRestNs = 1'000'000'000;

// One thread at a time. Knows no clock: times are what the caller says.
class Workers {
 public:
  Workers(uint32_t count, uint64_t seed) : fresh_(count), random_(seed) {}

  // When a worker may send: 0 = now, INT64_MAX = not before one is released.
  int64_t NextSendNs() const;
  // Takes the worker of NextSendNs; returns how often in a row it was refused, for Release.
  uint32_t Take();
  // Its call ended so. RESOURCE_EXHAUSTED and UNAVAILABLE are refusals; any other end is not, and
  // starts the count anew.
  void Release(uint32_t refusals, absl::StatusCode end, int64_t now_ns);

 private:
  int64_t RestNs(uint32_t refusals);

  using Resting = std::pair<int64_t, uint32_t>;  // until when, refusals in a row
  uint64_t fresh_;                               // free, and last not refused
  std::priority_queue<Resting, std::vector<Resting>, std::greater<>> resting_;
  std::mt19937_64 random_;
};

}  // namespace normserve::client
