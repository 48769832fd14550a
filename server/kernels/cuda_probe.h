// SPDX-License-Identifier: Apache-2.0
// Whether a GPU can run this build's kernels at all, and how they are launched.
#pragma once

namespace normserve::kernels {

// Null where the current device runs our kernels; else why not, in CUDA's words (no machine code for it, say).
const char* CudaKernelFault();
// From now on our kernels are launched dependently (device.cuh).
void UseDependentLaunch();

}  // namespace normserve::kernels
