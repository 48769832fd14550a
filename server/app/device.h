// SPDX-License-Identifier: Apache-2.0
// What --device comes to on this machine.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "app/options.h"
#include "kernels/accelerator.h"

namespace normserve::app {

// Where every model of the process runs.
struct Device {
  std::unique_ptr<kernels::Accelerator> accelerator;  // null: the CPU
  std::string why_cpu;  // why --device auto came to the CPU; empty otherwise

  // As in GetModel: "cpu", "cuda:0", "cuda-emulated".
  std::string name() const { return accelerator == nullptr ? "cpu" : accelerator->name(); }
  bool is_gpu() const { return accelerator != nullptr && !accelerator->device().is_cpu(); }
};

// Brings in the device and its kernels. First thing in main: see kernel_plugin.h. An error, one sentence that
// begins with the flag, where this build or machine lacks a device that was asked for by name.
absl::StatusOr<Device> OpenDevice(const Options& options);

}  // namespace normserve::app
