// SPDX-License-Identifier: Apache-2.0
// Kernels of another device in a shared library of their own, so that the server itself needs none of that
// device's libraries. Opening one registers its kernels with the dispatcher, for the life of the process.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace normserve::kernels {

// Opens `file` beside the running programme. NOT_FOUND: there is no such file; FAILED_PRECONDITION: it cannot
// be loaded here (libraries of the device are missing), or finds no device. Call it first thing in main:
// LibTorch asks for its devices once, and remembers the answer.
absl::Status OpenKernelPlugin(const std::string& file);

}  // namespace normserve::kernels
