// SPDX-License-Identifier: Apache-2.0
// The subset of CUDA that our kernels use, for g++: compile a .cu as C++ with this included first.
// Covered: threadIdx and its like, block and warp barriers, shuffles and votes, dynamic and static
// shared memory, 16-bit floats, 8- and 16-byte vectors, atomics, launch().
// Not covered, and not to be used by kernels that run here: inline assembly, cooperative groups,
// textures, kernels that run beside each other. What the emulation finds and what it cannot is
// listed in block_scheduler.h. Only memory from DYN_SHARED is filled with NaN before every block:
// a static __shared__ array keeps what the block before it left, so prefer DYN_SHARED.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "block_scheduler.h"
#include "launched_kernels.h"
#include "recording.h"

#define NORMSERVE_CUDA_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
// Blocks run one after another on one OS thread, so a static local is exactly "one per block".
#define __shared__ static

struct __attribute__((may_alias, aligned(16))) uint4 {
  uint32_t x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) uint2 {
  uint32_t x, y;
};
struct __attribute__((may_alias, aligned(16))) int4 {
  int32_t x, y, z, w;
};
struct __attribute__((may_alias, aligned(16))) float4 {
  float x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) float2 {
  float x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// 16-bit floats: conversions round to nearest, ties to even.
struct __nv_bfloat16 {
  uint16_t u;
  __nv_bfloat16() = default;
  __nv_bfloat16(float f) {
    uint32_t b;
    std::memcpy(&b, &f, sizeof(b));
    const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    u = static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
  operator float() const {
    const uint32_t b = uint32_t{u} << 16;
    float f;
    std::memcpy(&f, &b, sizeof(f));
    return f;
  }
};
struct __half {
  _Float16 h;
  __half() = default;
  __half(float f) : h(static_cast<_Float16>(f)) {}
  operator float() const { return static_cast<float>(h); }
};
struct __attribute__((may_alias, aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
struct __attribute__((may_alias, aligned(4))) __half2 {
  __half x, y;
};
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline float __half2float(__half v) { return v; }
inline __half __float2half(float v) { return v; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }

// Arithmetic and memory.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
// Never fused into one rounding: the target is built with -ffp-contract=off.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}
inline float __fdividef(float a, float b) { return a / b; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, T v) {
  return std::exchange(*p, *p + v);
}
template <class T>
T atomicMax(T* p, T v) {
  return std::exchange(*p, *p > v ? *p : v);
}

#define threadIdx (::emu::Current().cur->tid)
#define blockIdx (::emu::Current().bid)
#define blockDim (::emu::Current().block)
#define gridDim (::emu::Current().grid)

inline void __syncthreads(int line = __builtin_LINE()) { emu::BlockBarrier(line); }
inline void __threadfence() {}
inline void __syncwarp(unsigned mask = ~0u) {
  emu::Exchange(mask, 0, 1, [](int lane) { return lane; });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = emu::kWarpSize) {
  return emu::Exchange(mask, v, 2, [=](int lane) {
    const int source = lane ^ bits;
    return source / width == lane / width ? source : lane;
  });
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = emu::kWarpSize) {
  return emu::Exchange(mask, v, 3, [=](int lane) {
    const int source = lane + static_cast<int>(delta);
    return source / width == lane / width ? source : lane;
  });
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = emu::kWarpSize) {
  return emu::Exchange(mask, v, 5, [=](int lane) {
    const int source = lane - static_cast<int>(delta);
    return source >= lane / width * width ? source : lane;
  });
}
template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = emu::kWarpSize) {
  return emu::Exchange(mask, v, 4, [=](int lane) { return lane / width * width + source % width; });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned result = 0;
  for (int lane = 0; lane < emu::kWarpSize; ++lane) {
    const unsigned live = mask & emu::Current().LiveLanes(emu::Current().cur->warp);
    if (((live >> lane) & 1u) == 0) continue;
    const int set = emu::Exchange(mask, predicate != 0 ? 1 : 0, 6, [=](int) { return lane; });
    if (set != 0) result |= 1u << lane;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}

// The two spellings that kernels/device.cuh defines for nvcc.
#define DYN_SHARED(T, name) T* name = static_cast<T*>(::emu::Current().shared())
template <class... P, class... A>
inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                   A&&... args) {
  emu::RunOrRecord([=] {
    emu::NoteLaunch(reinterpret_cast<void*>(kernel));
    emu::Current().Launch(grid, block, shared_bytes, [&] { kernel(static_cast<P>(args)...); });
  });
}
