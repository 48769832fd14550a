// SPDX-License-Identifier: Apache-2.0
// How kernels read one output's weights: in packs of 16 bytes, widened to float32 a run at a time, or value
// by value where a row does not begin at a multiple of 16 bytes or ends within a pack. Both give the same
// numbers. The layouts are in weight_format.h. No torch, no host API.
#pragma once

#include "kernels/device.cuh"
#include "kernels/weight_format.h"

namespace normserve::kernels {

// All rows of one weight.
struct WeightRows {
  const char* first;
  int64_t stride;     // bytes
  int64_t scales_at;  // bytes from a row's begin; quantised weights only

  __device__ const char* Row(int64_t output) const { return first + output * stride; }
  __device__ const char* Scales(int64_t output) const { return Row(output) + scales_at; }
};

inline WeightRows WeightRowsOf(WeightFormat format, const void* weight, int64_t stride, int64_t inputs) {
  return {static_cast<const char*>(weight), stride, IsQuantised(format) ? RowScalesAt(format, inputs) : 0};
}

// What the readers below have in common. A weight is RowScale * RunScale * value; a run is a piece of a pack
// whose values share their RunScale.
struct NoScales {
  static constexpr bool kRunScales = false, kRowScale = false;
  __device__ static float RunScale(const char*, int64_t) { return 1.0f; }
  __device__ static float RowScale(const char*) { return 1.0f; }
};

template <typename T>
struct FloatWeights : NoScales {
  static constexpr int kValues = kPackWidth<T>;  // of a pack
  static constexpr int kRun = kValues;

  __device__ static void Widen(uint4 raw, int, float (&w)[kRun]) {
    Pack<T> pack;
    pack.raw = raw;
#pragma unroll
    for (int j = 0; j < kRun; ++j) w[j] = ToFloat(pack.e[j]);
  }
  __device__ static float Value(const char* row, int64_t i) {
    return ToFloat(reinterpret_cast<const T*>(row)[i]);
  }
};

struct Int8Weights : NoScales {
  static constexpr int kValues = 16, kRun = 8;
  static constexpr bool kRunScales = true;

  __device__ static void Widen(uint4 raw, int run, float (&w)[kRun]) {
    Pack<int8_t> pack;
    pack.raw = raw;
#pragma unroll
    for (int j = 0; j < kRun; ++j) w[j] = static_cast<float>(pack.e[run * kRun + j]);
  }
  __device__ static float Value(const char* row, int64_t i) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(row)[i]);
  }
  // Of the run that begins at input i.
  __device__ static float RunScale(const char* scales, int64_t i) {
    return ToFloat(reinterpret_cast<const __nv_bfloat16*>(scales)[i / kGroup]);
  }
};

// A 256th of each of four e4m3 codes. Exponent and mantissa of e4m3, one bit below the sign of a half, are
// those of a half 2^8 smaller (the biases are 7 and 15), subnormals included; a half widens exactly. e4m3 has
// no infinity, and its NaN, all ones, has all ones below the half's uppermost exponent bit: one more sets
// that.
__device__ inline uint32_t HalvesOfFloat8(uint32_t codes) {  // of the upper byte of either half
  const uint32_t value = (codes & 0x7f007f00u) >> 1;
  return value | ((value + 0x00800080u) & 0x40004000u) | (codes & 0x80008000u);
}
__device__ inline void WidenFloat8(uint32_t codes, float* w) {
  union Halves {
    uint32_t bits;
    __half2 both;
  } even, odd;
  even.bits = HalvesOfFloat8(codes << 8);
  odd.bits = HalvesOfFloat8(codes);
  const float2 first = __half22float2(even.both), second = __half22float2(odd.both);
  w[0] = first.x;
  w[1] = second.x;
  w[2] = first.y;
  w[3] = second.y;
}

struct Float8Weights : NoScales {
  static constexpr int kValues = 16, kRun = 8;
  static constexpr bool kRowScale = true;

  __device__ static void Widen(uint4 raw, int run, float (&w)[kRun]) {
    Pack<uint32_t> pack;
    pack.raw = raw;
#pragma unroll
    for (int j = 0; j < kRun / 4; ++j) WidenFloat8(pack.e[run * (kRun / 4) + j], w + 4 * j);
  }
  __device__ static float Value(const char* row, int64_t i) {
    float w[4];
    WidenFloat8(reinterpret_cast<const uint8_t*>(row)[i], w);
    return w[0];
  }
  __device__ static float RowScale(const char* scales) {
    return 256.0f * *reinterpret_cast<const float*>(scales);
  }
};

// Calls body(reader) for a format that CUDA has.
template <class Body>
inline void WithWeights(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::kFloat32: return body(FloatWeights<float>{});
    case WeightFormat::kBFloat16: return body(FloatWeights<__nv_bfloat16>{});
    case WeightFormat::kInt8: return body(Int8Weights{});
    case WeightFormat::kFloat8: return body(Float8Weights{});
    case WeightFormat::kInt4:
    case WeightFormat::kFloat16:
    case WeightFormat::kBFloat16Dot: return;
  }
}
template <class Body>
inline void WithQuantisedWeights(WeightFormat format, const Body& body) {
  if (format == WeightFormat::kInt8) return body(Int8Weights{});
  if (format == WeightFormat::kFloat8) return body(Float8Weights{});
}

}  // namespace normserve::kernels
