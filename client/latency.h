// SPDX-License-Identifier: Apache-2.0
// Exact percentiles of recorded samples. Everything is kept: a load run's samples fit in memory,
// and a histogram's error would be one more thing to explain.
#pragma once

#include <cstdint>
#include <vector>

namespace normserve::client {

struct LatencySummary {
  uint64_t count = 0;
  double mean_ms = 0, p50_ms = 0, p90_ms = 0, p95_ms = 0, p99_ms = 0, max_ms = 0;
};

// Nearest rank: the smallest sample that at least `percent` of all are not above. 0 when empty.
// `sorted` ascending, percent in (0, 100].
int64_t Percentile(const std::vector<int64_t>& sorted, double percent);

// Takes nanoseconds in any order.
LatencySummary Summarize(std::vector<int64_t> samples_ns);

}  // namespace normserve::client
