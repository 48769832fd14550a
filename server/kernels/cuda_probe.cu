// SPDX-License-Identifier: Apache-2.0
// Asks the driver for one of our kernels, as a first launch would. Of a real device only.
#include "kernels/cuda_probe.h"

#include "kernels/gather.cuh"

namespace normserve::kernels {

const char* CudaKernelFault() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, GatherKernel<uint32_t, 1>) == cudaSuccess) return nullptr;
  return cudaGetErrorString(cudaGetLastError());  // and forgets it
}

void UseDependentLaunch() { dependent_launch = true; }

}  // namespace normserve::kernels
