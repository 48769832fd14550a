// SPDX-License-Identifier: Apache-2.0
// A GPU's own numbers, read when scraped.
#pragma once

#include <prometheus/collectable.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace normserve::metrics {

struct DeviceReading {
  uint64_t memory_used_bytes = 0;
  uint64_t memory_total_bytes = 0;  // 0: not known
  double utilization = -1;          // 0 to 1; negative: not known
};

// normserve_device_memory_used_bytes, normserve_device_memory_total_bytes, normserve_device_utilization_ratio, with
// label `device`. What is not known is left out. Any thread, as is `read`.
class DeviceMetrics final : public prometheus::Collectable {
 public:
  DeviceMetrics(std::string device, std::function<DeviceReading()> read)
      : device_(std::move(device)), read_(std::move(read)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string device_;
  const std::function<DeviceReading()> read_;
};

}  // namespace normserve::metrics
