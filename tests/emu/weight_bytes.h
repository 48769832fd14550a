// SPDX-License-Identifier: Apache-2.0
// Weights in every layout that the CUDA kernels read (kernels/weight_format.h), made by plain loops, with the
// numbers that they stand for. No code of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emu/emu_rows.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {

inline constexpr WeightFormat kCudaFormats[] = {WeightFormat::kFloat32, WeightFormat::kBFloat16,
                                                WeightFormat::kInt8, WeightFormat::kFloat8};

// What an e4m3 code means, by its definition.
inline double Float8(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nan("");
  const double magnitude =
      exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::ldexp(1.0, exponent - 7 - 3);
  return code < 128 ? magnitude : -magnitude;
}

inline uint8_t NearestFloat8(double v) {
  int best = 0;
  for (int code = 0; code < 255; ++code) {
    if (code != 127 && std::fabs(Float8(code) - v) < std::fabs(Float8(best) - v)) best = code;
  }
  return static_cast<uint8_t>(best);
}

// [outputs] rows `stride` bytes apart from the first multiple of 16 + `shift` on; bytes outside are 0x7f, a
// NaN or something large in every format.
struct WeightBytes {
  WeightFormat format;
  int64_t outputs, inputs, stride;
  std::vector<double> values;  // [outputs, inputs]

  WeightBytes(WeightFormat f, int64_t n, int64_t k, unsigned seed, int64_t pad = 0, int64_t shift = 0)
      : format(f), outputs(n), inputs(k), stride(LinearRowBytes(f, k) + pad),
        values(static_cast<size_t>(n * k)), bytes_(static_cast<size_t>(n * stride + 64), 0x7f) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    begin_ = (16 - address % 16) % 16 + static_cast<uintptr_t>(shift);
    const std::vector<float> w = TestFloats(n * k, 0.0f, 0.5f, seed);
    for (int64_t o = 0; o < n; ++o) PackRow(w.data() + o * k, o);
  }
  WeightBytes(const WeightBytes&) = delete;
  WeightBytes& operator=(const WeightBytes&) = delete;

  unsigned char* row(int64_t o) { return bytes_.data() + begin_ + o * stride; }

 private:
  template <typename T>
  void Put(int64_t o, int64_t at, T v) {
    std::memcpy(row(o) + at, &v, sizeof(T));
  }
  double& Value(int64_t o, int64_t i) { return values[static_cast<size_t>(o * inputs + i)]; }

  template <typename T>
  void PutFloat(int64_t o, int64_t i, T v) {
    Put(o, static_cast<int64_t>(sizeof(T)) * i, v);
    Value(o, i) = float(v);
  }

  void PackRow(const float* w, int64_t o) {
    switch (format) {
      case WeightFormat::kFloat32:
        for (int64_t i = 0; i < inputs; ++i) PutFloat(o, i, w[i]);
        return;
      case WeightFormat::kBFloat16:
        for (int64_t i = 0; i < inputs; ++i) PutFloat(o, i, __nv_bfloat16(w[i]));
        return;
      case WeightFormat::kInt8:
        for (int64_t g = 0; g < GroupsOf(inputs); ++g) PackGroup(w, o, g);
        return;
      default:
        PackFloat8(w, o);
    }
  }
  void PackGroup(const float* w, int64_t o, int64_t g) {
    const int64_t begin = g * kGroup, end = std::min(inputs, begin + kGroup);
    float largest = 0.0f;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(w[i]));
    const __nv_bfloat16 scale(largest / 120.0f);
    Put(o, RoundedUp(inputs, kGroup) + 2 * g, scale);
    for (int64_t i = begin; i < begin + kGroup; ++i) {
      const float exact = i < end && largest > 0.0f ? w[i] / float(scale) : 0.0f;
      const int8_t q = static_cast<int8_t>(std::lrint(exact));
      Put(o, i, q);
      if (i < end) Value(o, i) = double(scale) * q;
    }
  }
  void PackFloat8(const float* w, int64_t o) {
    const float scale = 0.01f * static_cast<float>(1 + o % 3);
    const int64_t padded = RoundedUp(inputs, kFloat8Pack);
    Put(o, padded, scale);
    for (int64_t i = 0; i < padded; ++i) {
      const uint8_t code = i < inputs ? NearestFloat8(w[i] / scale) : uint8_t{0};
      Put(o, i, code);
      if (i < inputs) Value(o, i) = double(scale) * Float8(code);
    }
  }

  std::vector<unsigned char> bytes_;
  uintptr_t begin_ = 0;
};

}  // namespace normserve::kernels
