// SPDX-License-Identifier: Apache-2.0
// The process's own numbers under Prometheus' usual names, read from /proc when scraped.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

namespace normserve::metrics {

// process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
// process_open_fds, process_max_fds, process_threads, process_start_time_seconds. What /proc does
// not say is left out. Any thread.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace normserve::metrics
