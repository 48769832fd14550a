// SPDX-License-Identifier: Apache-2.0
// A device by its name, for the programs that check and measure one: as server/app/device.cc opens it,
// without the server's flags.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kernels/accelerator.h"
#include "kernels/kernel_plugin.h"
#include "kernels/ops.h"

namespace normserve {

inline constexpr int kNoDevice = 2;  // exit code

// `device` is "cuda" or "cuda-emulated"; its plugin lies beside the running programme. Where it cannot be
// opened, says why in one line and ends the process. First thing in main: see kernels/kernel_plugin.h.
inline std::unique_ptr<kernels::Accelerator> OpenDeviceOrExit(const std::string& device) {
  const bool emulated = device == "cuda-emulated";
  auto opened = kernels::OpenKernelPlugin(emulated ? "normserve_cuda_emulated.so" : "normserve_cuda.so", 0);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s: %s\n", device.c_str(), std::string(opened.status().message()).c_str());
    std::exit(kNoDevice);
  }
  for (const std::string& missing : kernels::MissingKernels((*opened)->device().type())) {
    std::fprintf(stderr, "%s: no kernel for %s\n", device.c_str(), missing.c_str());
    std::exit(kNoDevice);
  }
  (*opened)->UseOnThisThread();
  return *std::move(opened);
}

}  // namespace normserve
