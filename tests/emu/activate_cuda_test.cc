// SPDX-License-Identifier: Apache-2.0
// The CUDA Activate kernel in the emulator: against loops in double on every width and layout; the
// same bits in either order of threads, for any number of rows and any alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "emu/emu_rows.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kWidths[] = {1, 3, 31, 32, 33, 576, 577, 2048, 4096, 16384};

struct Norms {
  const RowNorm* gate = nullptr;  // null: none
  const RowNorm* up = nullptr;
};

template <typename T>
std::vector<T> RunActivate(const std::vector<T>& x, int64_t width, bool gated, const Norms& norms,
                           Layout layout, bool reversed) {
  const int64_t x_width = gated ? 2 * width : width;
  const int64_t rows = static_cast<int64_t>(x.size()) / x_width;
  Matrix<T> in(rows, x_width, layout, x), out(rows, width, layout);
  ActivateRows args;
  args.type = kRowTypeOf<T>;
  args.x = in.row(0);
  args.x_stride = in.stride();
  args.y = out.row(0);
  args.y_stride = out.stride();
  args.width = width;
  args.gated = gated;
  args.has_gate_norm = norms.gate != nullptr;
  if (norms.gate != nullptr) args.gate = *norms.gate;
  args.has_up_norm = norms.up != nullptr;
  if (norms.up != nullptr) args.up = *norms.up;
  const OrderScope order(reversed);
  ActivateRowsCuda(args, rows, nullptr);
  out.ExpectBandIntact("y");
  in.ExpectBandIntact("x");
  EXPECT_TRUE(SameBits(in.Values(), x)) << "x changed";
  return out.Values();
}

template <typename T>
std::vector<double> Projection(const T* x, int64_t width, const RowNorm* norm) {
  double stat = 0.0;
  return norm != nullptr ? NormLoop(x, width, *norm, &stat) : std::vector<double>(x, x + width);
}

template <typename T>
std::vector<double> ActivateLoop(const T* x, int64_t width, bool gated, const Norms& norms) {
  std::vector<double> y = Projection(x, width, norms.gate);
  if (!gated) {
    for (double& v : y) v = 0.5 * v * std::erfc(-v * std::sqrt(0.5));
    return y;
  }
  const std::vector<double> up = Projection(x + width, width, norms.up);
  for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] / (1.0 + std::exp(-y[i])) * up[i];
  return y;
}

template <typename T>
void Check(int64_t width, bool gated, const Norms& norms, const std::string& what) {
  const int64_t rows = width > 4096 ? 3 : 5, x_width = gated ? 2 * width : width;
  std::vector<T> x = TestRows<T>(rows, x_width, 21);
  for (T& v : x) v = T(float(v) / 16.0f);  // products that float16 can hold
  const std::vector<T> first = RunActivate(x, width, gated, norms, Layout::kContiguous, false);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> want = ActivateLoop(x.data() + r * x_width, width, gated, norms);
    // What is left of up after its mean cancelled is off by 1e-6, and the gate multiplies it.
    double gate = 1.0;
    for (const double v : Projection(x.data() + r * x_width, width, norms.gate)) {
      gate = std::max(gate, std::fabs(v));
    }
    const double rel = std::is_same_v<T, float> ? 2e-6 : kRoundOff<T>;
    ExpectClose(first.data() + r * width, want, 1e-6 * gate, rel, what);
  }
  for (const Layout layout : kLayouts) {
    if (layout == Layout::kContiguous) continue;
    const bool reversed = layout != Layout::kStrided;
    EXPECT_TRUE(SameBits(first, RunActivate(x, width, gated, norms, layout, reversed)))
        << what << ": depends on the layout " << static_cast<int>(layout)
        << (reversed ? " or on the order of threads" : "");
  }
}

template <typename T>
class ActivateCuda : public ::testing::Test {};
TYPED_TEST_SUITE(ActivateCuda, RowTypes);

TYPED_TEST(ActivateCuda, EveryWidthWithAndWithoutNorms) {
  for (const int64_t width : kWidths) {
    const NormFamily family(width);
    const RowNorm &rms = family.Named("rms"), &layer_norm = family.Named("layernorm");
    const std::string at = ", width " + std::to_string(width);
    Check<TypeParam>(width, true, {}, "swiglu" + at);
    Check<TypeParam>(width, true, {&rms, &rms}, "swiglu, both normed" + at);
    Check<TypeParam>(width, true, {&rms, nullptr}, "swiglu, gate normed" + at);
    Check<TypeParam>(width, true, {nullptr, &layer_norm}, "swiglu, up normed" + at);
    Check<TypeParam>(width, false, {}, "gelu" + at);
    Check<TypeParam>(width, false, {&layer_norm, nullptr}, "gelu, normed" + at);
    if (::testing::Test::HasFailure()) return;
  }
}

// Widths of feed-forward layers beyond what a norm can hold in registers.
TYPED_TEST(ActivateCuda, WiderThanAnyNorm) {
  Check<TypeParam>(28672, true, {}, "swiglu of 28672");
  Check<TypeParam>(20001, false, {}, "gelu of 20001");
}

TYPED_TEST(ActivateCuda, EveryPairOfNorms) {
  const NormFamily family(96);
  for (const NormCase& gate : family.cases()) {
    if (gate.norm.numbers.stat == NormStat::kCarried) continue;
    for (const NormCase& up : family.cases()) {
      if (up.norm.numbers.stat == NormStat::kCarried) continue;
      Check<TypeParam>(96, true, {&gate.norm, &up.norm}, gate.name + " and " + up.name);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TYPED_TEST(ActivateCuda, ARowDoesNotSeeItsNeighbours) {
  using T = TypeParam;
  for (const int64_t width : {33, 576, 4096}) {
    const NormFamily family(width);
    const Norms norms = {&family.Named("rms"), &family.Named("layernorm")};
    const std::vector<T> x = TestRows<T>(64, 2 * width, 22);
    const std::vector<T> all = RunActivate(x, width, true, norms, Layout::kStrided, true);
    for (const int64_t rows : {1, 3}) {
      const std::vector<T> few(x.begin(), x.begin() + rows * 2 * width);
      const std::vector<T> same(all.begin(), all.begin() + rows * width);
      EXPECT_TRUE(SameBits(RunActivate(few, width, true, norms, Layout::kPadded, false), same))
          << "width " << width << ", rows " << rows;
    }
  }
}

// In float32, where nothing is rounded in between: the norms, then Activate, to the last bit.
TEST(ActivateCudaFused, EqualsUnfused) {
  for (const int64_t width : kWidths) {
    const NormFamily family(width);
    const RowNorm &rms = family.Named("rms"), &layer_norm = family.Named("layernorm");
    const std::vector<float> x = TestRows<float>(3, 2 * width, 23);
    Matrix<float> normed(3, 2 * width, Layout::kOffsetByOne, x);
    const int64_t stride = normed.stride();
    float* gate = normed.row(0);
    float* up = gate + width;
    const RowType type = RowType::kFloat32;
    NormRowsCuda({type, gate, stride, gate, stride, nullptr, width, rms}, 3, nullptr);
    NormRowsCuda({type, up, stride, up, stride, nullptr, width, layer_norm}, 3, nullptr);
    const Layout layout = Layout::kContiguous;
    EXPECT_TRUE(SameBits(RunActivate(x, width, true, {&rms, &layer_norm}, layout, false),
                         RunActivate(normed.Values(), width, true, {}, layout, false)))
        << "width " << width;
  }
}

}  // namespace
}  // namespace normserve::kernels
