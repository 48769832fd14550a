// SPDX-License-Identifier: Apache-2.0
// What every kernel shares: the two spellings that nvcc and the emulator (tests/emu/cuda_emu.h,
// which defines NORMSERVE_CUDA_EMULATED) write differently, element types, 16-byte loads, and sums
// over a warp and a block in one fixed order. Warps are of 32; no inline assembly, no cooperative
// groups.
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
namespace normserve::kernels {
// Programmatic dependent launch: whether a kernel's blocks may be placed while the kernel before it on the stream still
// runs. They wait for its end (WaitForLastKernel) before they read or write anything.
inline bool dependent_launch = false;
}  // namespace normserve::kernels

template <class... P, class... A>
inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = normserve::kernels::dependent_launch ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}
#endif

namespace normserve::kernels {

// The first line of every kernel: see dependent_launch. Nothing to wait for where there is no such launch.
__device__ inline void WaitForLastKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

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

// 16 bytes of a row: what one load or store instruction moves.
template <typename T>
constexpr int kPackWidth = 16 / static_cast<int>(sizeof(T));

template <typename T>
union Pack {
  uint4 raw;
  T e[kPackWidth<T>];
};

// `p` is at a multiple of 16 bytes: hardware faults on any other, and so does the emulator.
template <typename T>
__device__ inline uint4 LoadPack(const T* p) {
#if defined(NORMSERVE_CUDA_EMULATED)
  emu::CheckAligned(p, sizeof(uint4));
#endif
  return *reinterpret_cast<const uint4*>(p);
}
template <typename T>
__device__ inline void StorePack(T* p, uint4 raw) {
#if defined(NORMSERVE_CUDA_EMULATED)
  emu::CheckAligned(p, sizeof(uint4));
#endif
  *reinterpret_cast<uint4*>(p) = raw;
}

// Two neighbours at once: one conversion instruction for the 16-bit types.
__device__ inline void SetPair(float* to, float a, float b) {
  to[0] = a;
  to[1] = b;
}
__device__ inline void SetPair(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ inline void SetPair(__half* to, float a, float b) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}

// Calls body(T{}) with the element type.
template <class Body>
inline void WithRowType(RowType type, const Body& body) {
  switch (type) {
    case RowType::kFloat32:
      return body(float{});
    case RowType::kBFloat16:
      return body(__nv_bfloat16{});
    case RowType::kFloat16:
      return body(__half{});
  }
}

}  // namespace normserve::kernels
