// SPDX-License-Identifier: Apache-2.0
// What the tests of emulated kernels share: matrices inside a band of sentinels, deterministic
// values, and norms as plain loops in double. No torch, and no code of the kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "emu/cuda_emu.h"
#include "kernels/norm_rows.h"

namespace normserve::kernels {

template <typename T>
constexpr RowType kRowTypeOf = std::is_same_v<T, float>           ? RowType::kFloat32
                               : std::is_same_v<T, __nv_bfloat16> ? RowType::kBFloat16
                                                                  : RowType::kFloat16;

// Half an ulp of a result in T, relative to it, and a little more.
template <typename T>
constexpr double kRoundOff = std::is_same_v<T, float>           ? 1e-6
                             : std::is_same_v<T, __nv_bfloat16> ? 0x1p-8 * 1.02
                                                                : 0x1p-11 * 1.02;

// kPadded rows are apart but begin at multiples of 16 bytes where contiguous ones do; kStrided and
// kOffsetByOne begin anywhere.
enum class Layout { kContiguous, kPadded, kStrided, kOffsetByOne };
inline constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kPadded, Layout::kStrided,
                                      Layout::kOffsetByOne};

// [rows, width] inside sentinels.
template <typename T>
class Matrix {
 public:
  Matrix(int64_t rows, int64_t width, Layout layout) : rows_(rows), width_(width) {
    if (layout == Layout::kContiguous) stride_ = width;
    if (layout == Layout::kPadded) stride_ = (width + 7) / 8 * 8 + 16;
    if (layout == Layout::kStrided || layout == Layout::kOffsetByOne) stride_ = width + 13;
    begin_ = 64 + (layout == Layout::kOffsetByOne ? 1 : 0);
    all_.assign(static_cast<size_t>(begin_ + rows * stride_ + 128), T(kSentinel));
  }
  Matrix(int64_t rows, int64_t width, Layout layout, const std::vector<T>& values)
      : Matrix(rows, width, layout) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) row(r)[i] = values[static_cast<size_t>(r * width + i)];
    }
  }

  T* row(int64_t r) { return all_.data() + begin_ + r * stride_; }
  int64_t stride() const { return stride_; }

  std::vector<T> Values() {
    std::vector<T> values;
    for (int64_t r = 0; r < rows_; ++r) values.insert(values.end(), row(r), row(r) + width_);
    return values;
  }
  bool BandIntact() const {
    for (int64_t at = 0; at < static_cast<int64_t>(all_.size()); ++at) {
      const int64_t in_row = at - begin_;
      if (in_row >= 0 && in_row / stride_ < rows_ && in_row % stride_ < width_) continue;
      if (float(all_[static_cast<size_t>(at)]) != kSentinel) return false;
    }
    return true;
  }
  void ExpectBandIntact(const std::string& what) const {
    EXPECT_TRUE(BandIntact()) << what << ": written outside its rows";
  }

 private:
  static constexpr float kSentinel = 1536.0f;  // exact in every type
  int64_t rows_, width_, stride_ = 0, begin_ = 0;
  std::vector<T> all_;
};

// Blocks, warps and lanes in the opposite order while it lives.
class OrderScope {
 public:
  explicit OrderScope(bool reversed) { emu::SetReversed(reversed); }
  ~OrderScope() { emu::SetReversed(false); }
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Rows of five kinds: ordinary, tiny, large, shifted, with one massive activation.
template <typename T>
std::vector<T> TestRows(int64_t rows, int64_t width, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<size_t>(rows * width));
  for (int64_t r = 0; r < rows; ++r) {
    const float factor = r % 5 == 1 ? 1e-3f : r % 5 == 2 ? 300.0f : 1.0f;
    const float shift = r % 5 == 3 ? 2.0f : 0.0f;
    T* row = values.data() + r * width;
    for (int64_t i = 0; i < width; ++i) row[i] = T(normal(engine) * factor + shift);
    if (r % 5 == 4) row[width / 2] = T(500.0f);
  }
  return values;
}

inline std::vector<float> TestFloats(int64_t n, float mean, float spread, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(mean, spread);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(engine);
  return values;
}

// N(x) of one row, from the formulas in norm_rows.h. `stat` is read when carried and set otherwise.
template <typename T>
std::vector<double> NormLoop(const T* x, int64_t width, const RowNorm& norm, double* stat) {
  const NormNumbers& n = norm.numbers;
  const int64_t group = n.group_width > 0 ? n.group_width : width;
  std::vector<double> y(static_cast<size_t>(width));
  for (int64_t begin = 0; begin < width; begin += group) {
    double mean = 0, square = 0, variance = 0;
    for (int64_t i = begin; i < begin + group; ++i) mean += double(float(x[i])) / double(group);
    for (int64_t i = begin; i < begin + group; ++i) {
      const double v = float(x[i]);
      square += v * v / double(group);
      variance += (v - mean) * (v - mean) / double(group);
    }
    if (n.stat == NormStat::kMeanSquare) *stat = square;
    if (n.stat == NormStat::kVariance) *stat = variance;
    const double v = n.stat == NormStat::kCarried ? n.var_mul * *stat + n.var_add : *stat;
    const double spread = std::sqrt(v + n.eps) + n.mean_coef * std::fabs(mean);
    const double scale = n.stat == NormStat::kNone ? n.gain : n.gain / spread;
    const double centre = n.centring == NormCentring::kSubtractMean ? mean : 0.0;
    for (int64_t i = begin; i < begin + group; ++i) {
      double& r = y[static_cast<size_t>(i)];
      r = scale * (double(float(x[i])) - centre);
      if (n.phi == NormPhi::kTanh) r = std::tanh(r);
      if (norm.gamma != nullptr) r *= norm.gamma[i];
      if (norm.beta != nullptr) r += norm.beta[i];
    }
  }
  return y;
}

// |got - want| <= abs + rel * |want| everywhere; a NaN fails.
template <typename T>
void ExpectClose(const T* got, const std::vector<double>& want, double abs, double rel,
                 const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = float(got[i]);
    ASSERT_LE(std::fabs(value - want[i]), abs + rel * std::fabs(want[i]))
        << what << " at " << i << ": " << value << " instead of " << want[i];
  }
}

struct NormCase {
  std::string name;
  RowNorm norm;
};

// The family of norms; gamma and beta outlive the cases.
class NormFamily {
 public:
  explicit NormFamily(int64_t width)
      : gamma_(TestFloats(width + 1, 1.0f, 0.3f, 11)),
        beta_(TestFloats(width + 1, 0.0f, 0.3f, 12)) {
    const NormPhi id = NormPhi::kIdentity, tanh = NormPhi::kTanh;
    Add("identity", NormStat::kNone, id, 1.0f, nullptr, nullptr);
    Add("rms", NormStat::kMeanSquare, id, 1.0f, gamma_.data(), nullptr);
    Add("rms, gamma not aligned", NormStat::kMeanSquare, id, 1.0f, gamma_.data() + 1, nullptr);
    Add("layernorm", NormStat::kVariance, id, 1.0f, gamma_.data(), beta_.data()).centring =
        NormCentring::kSubtractMean;
    Add("np_layernorm", NormStat::kVariance, id, 1.0f, nullptr, nullptr).centring =
        NormCentring::kSubtractMean;
    Add("bhyt", NormStat::kMeanSquare, tanh, 0.8f, gamma_.data(), nullptr);
    NormNumbers& second =
        Add("bhyt_second", NormStat::kCarried, tanh, 0.8f, gamma_.data(), nullptr);
    second.var_mul = 1.25f;
    second.var_add = 0.5f;
    Add("bhytstar_mean", NormStat::kVariance, tanh, 0.8f, gamma_.data(), nullptr).mean_coef = 0.25f;
    Add("dyt", NormStat::kNone, tanh, 0.7f, gamma_.data(), beta_.data());
    for (const int64_t groups : {3, 16, 64}) {
      if (width % groups != 0 || width == groups) continue;
      const int32_t group = static_cast<int32_t>(width / groups);
      Add("rms_groups", NormStat::kMeanSquare, id, 1.0f, gamma_.data(), nullptr).group_width =
          group;
      NormNumbers& layer_norm =
          Add("layernorm_groups", NormStat::kVariance, id, 1.0f, gamma_.data(), beta_.data());
      layer_norm.group_width = group;
      layer_norm.centring = NormCentring::kSubtractMean;
    }
  }
  NormFamily(const NormFamily&) = delete;
  NormFamily& operator=(const NormFamily&) = delete;

  const std::vector<NormCase>& cases() const { return cases_; }
  const RowNorm& Named(const std::string& name) const {
    for (const NormCase& c : cases_) {
      if (c.name == name) return c.norm;
    }
    ADD_FAILURE() << "no norm " << name;
    return cases_.front().norm;
  }

 private:
  NormNumbers& Add(const char* name, NormStat stat, NormPhi phi, float gain, const float* gamma,
                   const float* beta) {
    NormCase c;
    c.name = name;
    c.norm.numbers.stat = stat;
    c.norm.numbers.phi = phi;
    c.norm.numbers.gain = gain;
    c.norm.numbers.eps = 1e-5f;
    c.norm.gamma = gamma;
    c.norm.beta = beta;
    cases_.push_back(c);
    return cases_.back().norm.numbers;
  }

  std::vector<float> gamma_, beta_;
  std::vector<NormCase> cases_;
};

using RowTypes = ::testing::Types<float, __nv_bfloat16, __half>;

}  // namespace normserve::kernels
