// SPDX-License-Identifier: Apache-2.0
// How busy a GPU is, from the driver's management library (NVML), which is opened at run time: a machine without
// it still serves.
#pragma once

namespace normserve::kernels {

// Any thread.
class DeviceUtilization {
 public:
  // `index` as CUDA numbers its devices.
  explicit DeviceUtilization(int index);
  ~DeviceUtilization();
  DeviceUtilization(const DeviceUtilization&) = delete;
  DeviceUtilization& operator=(const DeviceUtilization&) = delete;

  // Share of the last sample period (up to 1 s) in which a kernel ran, 0 to 1; negative: not known.
  double Now() const;

 private:
  struct Rates {
    unsigned gpu, memory;  // percent
  };
  void* library_ = nullptr;
  void* device_ = nullptr;
  int (*rates_)(void* device, Rates* rates) = nullptr;
};

}  // namespace normserve::kernels
