// SPDX-License-Identifier: Apache-2.0
// What kernel_plugin.h looks for in the library of CUDA kernels.
#if !defined(NORMSERVE_CUDA_EMULATED)
#include <c10/cuda/CUDAFunctions.h>
#endif

// How many devices there are; the emulator is always one.
extern "C" __attribute__((visibility("default"))) int normserve_plugin_devices() {
#if defined(NORMSERVE_CUDA_EMULATED)
  return 1;
#else
  return c10::cuda::device_count();
#endif
}
