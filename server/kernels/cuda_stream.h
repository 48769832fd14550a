// SPDX-License-Identifier: Apache-2.0
// Where the glue of the CUDA device puts its kernels, and the device of its tensors. Under
// NORMSERVE_CUDA_EMULATED the kernels run at once, on the CPU's tensors.
#pragma once

#include <c10/core/DeviceType.h>

#include "kernels/cuda_rows.h"

#if !defined(NORMSERVE_CUDA_EMULATED)
#include <c10/cuda/CUDAStream.h>
#endif

namespace normserve::kernels {

#if defined(NORMSERVE_CUDA_EMULATED)
inline constexpr c10::DeviceType kCudaDevice = c10::DeviceType::CPU;
inline CudaStream CurrentStream() { return nullptr; }
#else
inline constexpr c10::DeviceType kCudaDevice = c10::DeviceType::CUDA;
inline CudaStream CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }
#endif

}  // namespace normserve::kernels
