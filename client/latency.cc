// SPDX-License-Identifier: Apache-2.0
// See latency.h.
#include "client/latency.h"

#include <algorithm>
#include <cmath>

namespace normserve::client {

int64_t Percentile(const std::vector<int64_t>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double exact = percent / 100.0 * static_cast<double>(sorted.size());
  // 99 % of 100 samples is 99.00000000000001 in doubles: do not let that ask for the 100th.
  const auto rank = static_cast<size_t>(std::ceil(exact - 1e-9));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

LatencySummary Summarize(std::vector<int64_t> samples_ns) {
  LatencySummary summary;
  summary.count = samples_ns.size();
  if (samples_ns.empty()) return summary;
  std::sort(samples_ns.begin(), samples_ns.end());
  double sum = 0;
  for (const int64_t sample : samples_ns) sum += static_cast<double>(sample);
  summary.mean_ms = sum / static_cast<double>(samples_ns.size()) / 1e6;
  const auto at = [&](double percent) {
    return static_cast<double>(Percentile(samples_ns, percent)) / 1e6;
  };
  summary.p50_ms = at(50);
  summary.p90_ms = at(90);
  summary.p95_ms = at(95);
  summary.p99_ms = at(99);
  summary.max_ms = static_cast<double>(samples_ns.back()) / 1e6;
  return summary;
}

}  // namespace normserve::client
