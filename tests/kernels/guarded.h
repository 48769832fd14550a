// SPDX-License-Identifier: Apache-2.0
// Matrices laid out as real callers have them (slices of a wider tensor, offset by one element) inside
// a band of sentinels that a kernel must not touch.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace normserve::kernels {

enum class Layout { kContiguous, kStrided, kOffsetByOne };
inline constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kStrided, Layout::kOffsetByOne};

class Guarded {
 public:
  Guarded(int64_t rows, int64_t width, at::ScalarType dtype, Layout layout) {
    const int64_t row = layout == Layout::kContiguous ? width : width + 13;
    const int64_t begin = 64 + (layout == Layout::kOffsetByOne ? 1 : 0);
    const int64_t after = 128;
    all_ = at::full({begin + rows * row + after}, kSentinel, dtype);
    view_ = all_.as_strided({rows, width}, {row, 1}, begin);
  }
  explicit Guarded(const at::Tensor& values, Layout layout)
      : Guarded(values.size(0), values.size(1), values.scalar_type(), layout) {
    view_.copy_(values);
  }

  at::Tensor& view() { return view_; }

  // Fails if anything outside the view changed.
  void ExpectBandIntact(const char* what) const {
    at::Tensor copy = all_.clone();
    copy.as_strided(view_.sizes(), view_.strides(), view_.storage_offset()).fill_(kSentinel);
    EXPECT_TRUE(copy.eq(kSentinel).all().item<bool>()) << what << ": written outside its rows";
  }

 private:
  static constexpr double kSentinel = 1536.0;  // exact in bfloat16
  at::Tensor all_, view_;
};

// Bit for bit, NaN equal to NaN.
inline bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

// |got - want| <= abs + rel * |want| everywhere; a NaN fails.
inline void ExpectClose(const at::Tensor& got, const at::Tensor& want, double abs, double rel,
                        const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor w = want.to(at::kDouble);
  const at::Tensor excess = (got.to(at::kDouble) - w).abs() - (w.abs() * rel + abs);
  if (excess.numel() == 0) return;
  EXPECT_TRUE(excess.le(0).all().item<bool>())
      << what << ": off by up to " << excess.max().item<double>() << " more than allowed";
}

}  // namespace normserve::kernels
