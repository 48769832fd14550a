// SPDX-License-Identifier: Apache-2.0
// What the tests of the paged kernels share: numbers, buffers within guard bands, block tables.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "emu/emu_rows.h"
#include "kernels/cuda_rows.h"
#include "kernels/device.cuh"

namespace normserve::kernels {

// What one rounding to T may add to the relative error.
template <typename T>
constexpr double kRounding = 0.0;
template <>
inline constexpr double kRounding<__nv_bfloat16> = 1.0 / 256;
template <>
inline constexpr double kRounding<__half> = 1.0 / 2048;

template <typename T, typename C>
struct Types {
  using Act = T;
  using Cache = C;
};
using AllTypes = ::testing::Types<Types<float, float>, Types<float, __nv_bfloat16>,
                                  Types<__nv_bfloat16, __nv_bfloat16>, Types<__half, __half>>;

inline std::vector<float> Normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  return v;
}

// A buffer between bands that nobody may touch, begun `shift` elements off a 64-byte boundary.
template <typename T>
class Banded {
 public:
  explicit Banded(size_t n, size_t shift = 0, float fill = std::nanf(""))
      : n_(n), all_(n + 2 * kBand + kAlign, FromFloat<T>(kSentinel)) {
    const auto address = reinterpret_cast<uintptr_t>(all_.data() + kBand);
    begin_ = kBand + (64 - address % 64) % 64 / sizeof(T) + shift;
    std::fill_n(data(), n, FromFloat<T>(fill));
  }
  Banded(const Banded&) = delete;
  Banded& operator=(const Banded&) = delete;

  T* data() { return all_.data() + begin_; }
  const T* data() const { return all_.data() + begin_; }
  float operator[](size_t i) const { return ToFloat(data()[i]); }
  void Set(size_t i, float v) { data()[i] = FromFloat<T>(v); }
  size_t size() const { return n_; }
  std::vector<T> Copy() const { return {data(), data() + n_}; }

  ~Banded() {
    const T sentinel = FromFloat<T>(kSentinel);
    for (size_t i = 0; i < all_.size(); ++i) {
      if (i >= begin_ && i < begin_ + n_) continue;
      if (std::memcmp(&all_[i], &sentinel, sizeof(T)) != 0) {
        ADD_FAILURE() << "written outside the buffer at " << static_cast<int64_t>(i - begin_);
        return;
      }
    }
  }

 private:
  static constexpr size_t kBand = 64, kAlign = 80;
  static constexpr float kSentinel = 1536.0f;  // exact in every type
  size_t n_, begin_ = 0;
  std::vector<T> all_;
};

template <typename T>
bool SameBits(const T* a, const T* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(T)) == 0;
}

// |got - want| <= abs + rel |want|; a NaN fails.
inline bool Close(double got, double want, double abs, double rel) {
  return std::fabs(got - want) <= abs + rel * std::fabs(want);
}

// Block tables of sequences that share one cache, their blocks shuffled among each other.
struct Paging {
  int64_t block_size, blocks = 0, stride = 0;
  std::vector<int32_t> tables;

  Paging(const std::vector<int64_t>& contexts, int64_t block, uint32_t seed) : block_size(block) {
    for (const int64_t context : contexts) {
      const int64_t needed = (context + block - 1) / block;
      stride = std::max(stride, needed);
      blocks += needed;
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    tables.assign(contexts.size() * static_cast<size_t>(stride), -1000000);  // unused: far outside
    size_t next = 0;
    for (size_t s = 0; s < contexts.size(); ++s) {
      const int64_t needed = (contexts[s] + block - 1) / block;
      for (int64_t b = 0; b < needed; ++b) tables[s * stride + b] = order[next++];
    }
  }
  int32_t Slot(size_t sequence, int64_t position) const {
    const int64_t block = tables[sequence * stride + position / block_size];
    return static_cast<int32_t>(block * block_size + position % block_size);
  }
};

}  // namespace normserve::kernels
