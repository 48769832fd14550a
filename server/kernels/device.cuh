// SPDX-License-Identifier: Apache-2.0
// What every kernel shares: the two spellings that nvcc and the emulator (tests/emu/cuda_emu.h, which defines
// NORMSERVE_CUDA_EMULATED) write differently, element types, 16-byte loads, and sums over a warp and a block in
// one fixed order. Warps are of 32; no inline assembly, no cooperative groups.
#pragma once

#include <cstdint>

#include "kernels/norm_rows.h"

#if !defined(NORMSERVE_CUDA_EMULATED)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define DYN_SHARED(T, name)                        \
  extern __shared__ __align__(16) char dynamic_[]; \
  T* name = reinterpret_cast<T*>(dynamic_)
template <class... P, class... A>
inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   A&&... args) {
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(args)...);
}
#endif

namespace normserve::kernels {

__device__ inline float ToFloat(float v) { return v; }
__device__ inline float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float ToFloat(__half v) { return __half2float(v); }

template <typename T>
__device__ T FromFloat(float v);
template <>
__device__ inline float FromFloat<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float v) {
  return __float2bfloat16(v);
}
template <>
__device__ inline __half FromFloat<__half>(float v) {
  return __float2half(v);
}

constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the sum; the order is that of a butterfly, whatever the block.
__device__ inline float WarpSum(float v) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}
__device__ inline float WarpMax(float v) {
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, o));
  return v;
}

}  // namespace normserve::kernels
