// SPDX-License-Identifier: Apache-2.0
// See device_utilization.h. NVML numbers devices in its own order, so that the PCI address names the device.
#include "kernels/device_utilization.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace normserve::kernels {

DeviceUtilization::DeviceUtilization(int index) {
  char address[32];
  if (cudaDeviceGetPCIBusId(address, sizeof(address), index) != cudaSuccess) return;
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto start = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(
      dlsym(library_, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto rates = reinterpret_cast<int (*)(void*, Rates*)>(
      dlsym(library_, "nvmlDeviceGetUtilizationRates"));
  if (start == nullptr || find == nullptr || rates == nullptr) return;
  if (start() == 0 && find(address, &device_) == 0) rates_ = rates;
}

DeviceUtilization::~DeviceUtilization() {
  if (library_ == nullptr) return;
  if (const auto stop = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlShutdown"))) stop();
  dlclose(library_);
}

double DeviceUtilization::Now() const {
  Rates rates{};
  if (rates_ == nullptr || rates_(device_, &rates) != 0) return -1;
  return rates.gpu / 100.0;
}

}  // namespace normserve::kernels
