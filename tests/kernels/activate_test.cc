// SPDX-License-Identifier: Apache-2.0
// Activate against the double oracle, and its functions over their whole ranges.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/simd_target_scope.h"

namespace normserve::kernels {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
double HalfUlp(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 0x1p-8 * 1.02; }

Norm MakeNorm(int64_t width, int32_t group, NormStat stat) {
  Norm norm;
  norm.numbers.stat = stat;
  if (stat == NormStat::kVariance) norm.numbers.centring = NormCentring::kSubtractMean;
  norm.numbers.eps = 1e-5f;
  norm.numbers.group_width = group;
  norm.gamma = at::randn({width}) * 0.3 + 1.0;
  return norm;
}

TEST(Activate, ImplementationsAgree) {
  at::manual_seed(3);
  const std::vector<std::string> targets = SimdTargets();
  for (const int64_t width : {1, 40, 101, 512, 600, 1400}) {
    const int32_t group = width % 20 == 0 ? 20 : 0;
    const std::pair<OptionalNorm, OptionalNorm> norms[] = {
        {std::nullopt, std::nullopt},
        {MakeNorm(width, 0, NormStat::kMeanSquare), MakeNorm(width, 0, NormStat::kMeanSquare)},
        {MakeNorm(width, group, NormStat::kMeanSquare), std::nullopt},
        {MakeNorm(width, group, NormStat::kVariance), MakeNorm(width, 0, NormStat::kVariance)}};
    for (const at::ScalarType dtype : kTypes) {
      for (const auto& [gate, up] : norms) {
        for (const bool gated : {true, false}) {
          const at::Tensor x = (at::randn({3, gated ? 2 * width : width}) * 3).to(dtype);
          const Activation kind = gated ? Activation::kSiluGate : Activation::kGeluErf;
          const OptionalNorm& up_norm = gated ? up : norms[0].second;
          const at::Tensor want = ActivateOracle(x, kind, gate, up_norm);
          for (const std::string& target : targets) {
            const SimdTargetScope scope(target);
            Guarded in(x, Layout::kOffsetByOne), out(3, width, dtype, Layout::kStrided);
            Activate(in.view(), kind, gate, up_norm, out.view());
            out.ExpectBandIntact("activate");
            // A group of one element has no variance to speak of: only its layout is checked.
            if (width == 1 && gate) continue;
            ExpectClose(out.view(), want, 5e-6, 2 * HalfUlp(dtype),
                        target + " width " + std::to_string(width));
          }
        }
      }
    }
  }
}

TEST(Activate, FusedEqualsUnfused) {
  const int64_t width = 700;
  const Norm gate = MakeNorm(width, 0, NormStat::kMeanSquare);
  const Norm up = MakeNorm(width, 70, NormStat::kVariance);
  at::Tensor x = at::randn({4, 2 * width}), y = at::empty({4, width}), z = at::empty({4, width});
  Activate(x, Activation::kSiluGate, gate, up, y);
  at::Tensor g = x.slice(1, 0, width), u = x.slice(1, width), none;
  NormOp(g, gate, none, g);
  NormOp(u, up, none, u);
  Activate(x, Activation::kSiluGate, std::nullopt, std::nullopt, z);
  EXPECT_TRUE(SameBits(y, z));
}

// silu(x) * 1 over all that the exp inside can meet: within 3 ulp, and next to nothing far out to the left.
TEST(Activate, SiluIsExactOverTheWholeRange) {
  const at::Tensor points = at::cat({at::linspace(-87, 200, 300001), at::logspace(-44, 1, 5001),
                                     -at::logspace(-44, 1, 5001)});
  const int64_t n = points.numel();
  const at::Tensor x = at::cat({points, at::ones({n})}).view({1, -1});
  const at::Tensor want = ActivateOracle(x, Activation::kSiluGate, std::nullopt, std::nullopt);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor y = at::empty({1, n});
    Activate(x, Activation::kSiluGate, std::nullopt, std::nullopt, y);
    ExpectClose(y, want, 1e-36, 3.6e-7, target);
    const at::Tensor far =
        at::cat({at::tensor({-90.0f, -1e30f, 1e30f, NAN, -INFINITY, INFINITY}), at::ones({6})}).view({1, 12});
    at::Tensor out = at::empty({1, 6});
    Activate(far, Activation::kSiluGate, std::nullopt, std::nullopt, out);
    const float* got = out.const_data_ptr<float>();
    EXPECT_LE(std::abs(got[0]), 1e-35f) << target;
    EXPECT_EQ(got[1], 0.0f) << target;
    EXPECT_EQ(got[2], 1e30f) << target;
    EXPECT_TRUE(std::isnan(got[3]) && std::isnan(got[4])) << target;
    EXPECT_EQ(got[5], INFINITY) << target;
  }
}

TEST(Activate, GeluIsExactInBothTails) {
  at::Tensor x = at::cat({at::linspace(-16, 16, 200001), at::logspace(-44, 1, 5001),
                          -at::logspace(-44, 1, 5001)}).view({1, -1});
  const at::Tensor want = ActivateOracle(x, Activation::kGeluErf, std::nullopt, std::nullopt);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor y = at::empty_like(x);
    Activate(x, Activation::kGeluErf, std::nullopt, std::nullopt, y);
    ExpectClose(y, want, 3e-7, 6e-8, target);
    at::Tensor odd = at::tensor({INFINITY, -100.0f, NAN, 1e30f}).view({1, 4});
    at::Tensor out = at::empty_like(odd);
    Activate(odd, Activation::kGeluErf, std::nullopt, std::nullopt, out);
    EXPECT_EQ(out[0][0].item<float>(), INFINITY);
    EXPECT_EQ(out[0][1].item<float>(), 0.0f);
    EXPECT_TRUE(std::isnan(out[0][2].item<float>()));
    EXPECT_EQ(out[0][3].item<float>(), 1e30f);
  }
}

}  // namespace
}  // namespace normserve::kernels
