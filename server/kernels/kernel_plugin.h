// SPDX-License-Identifier: Apache-2.0
// Kernels of another device in a shared library of their own, so that the server itself needs none of that
// device's libraries. Opening one registers its kernels with the dispatcher, for the life of the process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/accelerator.h"

namespace normserve::kernels {

// Opens `file` beside the running programme, and device `index` through it. NOT_FOUND: there is no such file;
// FAILED_PRECONDITION: it cannot be loaded here (libraries of the device are missing), or has no such device.
// Call it first thing in main: LibTorch asks for its devices once, and remembers the answer.
absl::StatusOr<std::unique_ptr<Accelerator>> OpenKernelPlugin(const std::string& file, int index);

// What a plugin exports as "normserve_open_accelerator": device `index`, or null and a sentence in *error. The
// result is deleted by the caller.
using OpenAcceleratorFunction = Accelerator*(int index, std::string* error);

}  // namespace normserve::kernels
