// SPDX-License-Identifier: Apache-2.0
// Where the glue of the CUDA device puts its kernels, and memory that lasts until they have run. Under
// NORMSERVE_CUDA_EMULATED the kernels run at once on the CPU's tensors, unless they are being recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>

#include "kernels/cuda_rows.h"

#if !defined(NORMSERVE_CUDA_EMULATED)
#include <c10/cuda/CUDAStream.h>
#endif

namespace normserve::kernels {

#if defined(NORMSERVE_CUDA_EMULATED)
inline constexpr c10::DeviceType kCudaDevice = c10::DeviceType::CPU;
inline CudaStream CurrentStream() { return nullptr; }
bool Recording();
// Keeps what a recording's kernels use for as long as the recording.
void KeepWhileRecorded(const at::Tensor& tensor);
#else
inline constexpr c10::DeviceType kCudaDevice = c10::DeviceType::CUDA;
inline CudaStream CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }
// What is allocated while a graph is captured belongs to the graph's own pool.
inline void KeepWhileRecorded(const at::Tensor&) {}
#endif

// Uninitialised memory for kernels that are put on the stream before it goes out of scope. From the caching
// allocator: no call to the driver once a step of this size has run.
inline at::Tensor StreamScratch(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor scratch = at::empty(sizes, at::device(kCudaDevice).dtype(dtype));
  KeepWhileRecorded(scratch);
  return scratch;
}

}  // namespace normserve::kernels
