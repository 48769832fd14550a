// SPDX-License-Identifier: Apache-2.0
#include "metrics/device_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

namespace normserve::metrics {

std::vector<prometheus::MetricFamily> DeviceMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> out;
  const auto add = [&](const char* name, const char* help, double value) {
    prometheus::ClientMetric metric;
    metric.label.push_back({"device", device_});
    metric.gauge.value = value;
    out.push_back({name, help, prometheus::MetricType::Gauge, {metric}});
  };
  const DeviceReading reading = read_();
  if (reading.memory_total_bytes > 0) {
    add("normserve_device_memory_used_bytes", "Memory of the GPU in use, by every process on it.",
        static_cast<double>(reading.memory_used_bytes));
    add("normserve_device_memory_total_bytes", "Memory of the GPU.",
        static_cast<double>(reading.memory_total_bytes));
  }
  if (reading.utilization >= 0) {
    add("normserve_device_utilization_ratio", "Share of the last second in which the GPU ran a kernel, 0 to 1.",
        reading.utilization);
  }
  return out;
}

}  // namespace normserve::metrics
