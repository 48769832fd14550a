// SPDX-License-Identifier: Apache-2.0
// Linear and Embed over 8-bit and 4-bit weights. The oracle multiplies, in double, the weights as Embed
// reads them back; how near those are to the weights that were packed is a test of its own.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/ops.h"
#include "kernels/oracle.h"
#include "kernels/simd_target_scope.h"

namespace normserve::kernels {
namespace {

constexpr WeightFormat kQuantised[] = {WeightFormat::kInt8, WeightFormat::kInt4};

const char* Name(WeightFormat format) { return format == WeightFormat::kInt8 ? "int8" : "int4"; }

// The largest rounded input of a group, on the SIMD target in use.
double LargestInput() { return HasVnni() ? 127.0 : 32767.0; }

// The packed weights as float32 [N, K].
at::Tensor ReadBack(const PackedWeight& packed) {
  at::Tensor out = at::empty({packed.out_features, packed.in_features}, at::kFloat);
  Embed(at::arange(packed.out_features, at::kInt), packed, 1.0f, {}, {}, out);
  return out;
}

TEST(QuantisedLinear, ImplementationsAgree) {
  at::manual_seed(11);
  const struct {
    int64_t m, n, k;
  } shapes[] = {{1, 1, 1},    {1, 130, 33},  {2, 16, 7},    {3, 48, 64},  {5, 100, 100},
                {6, 32, 320}, {12, 129, 50}, {13, 257, 17}, {25, 40, 64}, {100, 20, 96}};
  for (const WeightFormat format : kQuantised) {
    for (const at::ScalarType x_type : {at::kFloat, at::kBFloat16}) {
      for (const auto& s : shapes) {
        // Groups of very different size, as layers have them.
        const at::Tensor x = (at::randn({s.m, s.k}) * (at::randn({s.k}) * 2).exp()).to(x_type);
        const PackedWeight packed = PackWeight(at::randn({s.n, s.k}) * 0.1, format);
        const at::Tensor w = ReadBack(packed), bias = s.m % 2 == 1 ? at::randn({s.n}) : at::Tensor();
        const at::Tensor want = LinearOracle(x, w, bias);
        const double largest = x.abs().max().item<double>();
        const double sum = w.abs().sum(1).max().item<double>();
        for (const std::string& target : SimdTargets()) {
          const SimdTargetScope scope(target);
          // An input is off by at most half a step of its group's largest.
          const double abs = largest * sum * (0.6 / LargestInput()) + 1e-6;
          Guarded in(x, Layout::kOffsetByOne), out(s.m, s.n, at::kFloat, Layout::kOffsetByOne);
          Linear(in.view(), packed, bias, out.view());
          const std::string what = std::string(Name(format)) + " " + target + " " +
                                   std::to_string(s.m) + "x" + std::to_string(s.n) + "x" +
                                   std::to_string(s.k);
          out.ExpectBandIntact(what.c_str());
          ExpectClose(out.view(), want, abs, 2e-6, what);
        }
      }
    }
  }
}

// A loose bound on inputs could hide a dropped one: integers are multiplied exactly.
TEST(QuantisedLinear, IntegersAreExact) {
  at::manual_seed(12);
  const struct {
    int64_t m, n, k;
  } shapes[] = {{7, 40, 96}, {1, 129, 7}, {4, 40, 17}, {12, 129, 33}, {13, 40, 50}, {1, 40, 64}, {25, 16, 90}};
  for (const WeightFormat format : kQuantised) {
    for (const auto& [m, n, k] : shapes) {
      const double top = format == WeightFormat::kInt8 ? 127.0 : 15.0;
      const double bottom = format == WeightFormat::kInt8 ? -top : 0.0;
      at::Tensor w = (at::randn({n, k}) * (top / 3)).round().clamp(bottom, top);
      for (int64_t g = 0; g < k; g += 32) {  // every group's scale is 1
        w.select(1, g).fill_(top);
        if (g + 1 < k) w.select(1, g + 1).fill_(bottom);
      }
      for (const std::string& target : SimdTargets()) {
        const SimdTargetScope scope(target);
        const double most = LargestInput();
        at::Tensor x = (at::randn({m, k}) * (most / 4)).round().clamp(-most, most);
        for (int64_t g = 0; g < k; g += 32) x.select(1, g).fill_(most);
        const PackedWeight packed = PackWeight(w, format);
        const std::string what = std::string(Name(format)) + " " + target + " " + std::to_string(m) + "x" +
                                 std::to_string(n) + "x" + std::to_string(k);
        EXPECT_TRUE(ReadBack(packed).equal(w)) << what;
        at::Tensor y = at::empty({m, n});
        Linear(x, packed, {}, y);
        // Groups are added in float32, which rounds sums above 2^24: those of 16-bit inputs.
        ExpectClose(y, LinearOracle(x, w, {}).to(at::kFloat), most > 127.0 ? 8.0 : 0.0, most > 127.0 ? 2e-7 : 0.0, what);
      }
    }
  }
}

TEST(QuantisedWeight, IsNearAndTheSameOnEveryTarget) {
  at::manual_seed(13);
  const at::Tensor w = at::randn({50, 200}) * (at::randn({50, 1}) * 2).exp();
  for (const WeightFormat format : kQuantised) {
    const std::vector<std::string> targets = SimdTargets();
    at::Tensor first;
    for (const std::string& target : targets) {
      const SimdTargetScope scope(target);
      const PackedWeight packed = PackWeight(w, format);
      if (!first.defined()) first = packed.panels;
      EXPECT_TRUE(packed.panels.equal(first)) << Name(format) << " " << target;
    }
    const at::Tensor back = ReadBack(PackWeight(w, format));
    for (int64_t g = 0; g < 200; g += 32) {
      const int64_t end = std::min<int64_t>(g + 32, 200);
      const at::Tensor part = w.slice(1, g, end), off = (back.slice(1, g, end) - part).abs();
      const at::Tensor range = part.abs().amax(1, true);
      // 8 bits: half a step of largest / 127, the scale rounded up by at most 2^-7 of itself. 4 bits: the
      // best range may be narrower than the values' own, which costs the outermost ones.
      const double steps = format == WeightFormat::kInt8 ? 0.51 / 127 : 0.4;
      EXPECT_TRUE((off <= range * steps).all().item<bool>()) << Name(format) << " group at " << g;
    }
    const double error = ((back - w).norm() / w.norm()).item<double>();
    EXPECT_LT(error, format == WeightFormat::kInt8 ? 0.0065 : 0.085) << Name(format);
  }
}

// A 4-bit group that lies on a grid already comes back as it was, up to its scale's rounding.
TEST(QuantisedWeight, FindsAGridThatIsThere) {
  at::manual_seed(14);
  at::Tensor levels = (at::randn({16, 64}) * 4 + 8).round().clamp(0.0, 15.0);
  for (const int64_t end : {0, 32}) {  // the grid's ends show in every group
    levels.select(1, end).fill_(0.0);
    levels.select(1, end + 1).fill_(15.0);
  }
  const at::Tensor w = levels * 0.03125 - 0.25;
  EXPECT_TRUE(ReadBack(PackWeight(w, WeightFormat::kInt4)).allclose(w, 1e-6, 1e-6));
}

TEST(QuantisedWeight, TakesAnyStridesAndDtypes) {
  const at::Tensor w = at::randn({50, 37});
  for (const WeightFormat format : kQuantised) {
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor source = w.to(from);
      const PackedWeight want = PackWeight(source.to(at::kFloat), format);
      EXPECT_TRUE(PackWeight(source, format).panels.equal(want.panels));
      EXPECT_TRUE(PackWeight(source.t().contiguous().t(), format).panels.equal(want.panels));
      EXPECT_EQ(want.out_features, 50);
      EXPECT_EQ(want.in_features, 37);
    }
  }
}

TEST(QuantisedWeight, ConstantsZerosAndExtremesAreKept) {
  for (const WeightFormat format : kQuantised) {
    for (const float value : {0.0f, 1.0f, -2.0f, 0x1p-120f, 0x1p100f, -0x1p-149f}) {
      const at::Tensor w = at::empty({17, 40}, at::kFloat).fill_(value);
      const at::Tensor back = ReadBack(PackWeight(w, format));
      EXPECT_TRUE(back.isfinite().all().item<bool>()) << Name(format) << " " << value;
      // Scales under 1e-37 are taken as 0.
      EXPECT_TRUE(back.allclose(w, 0.008, 127e-37)) << Name(format) << " " << value << " " << back[0][0];
    }
  }
}

// A broken checkpoint shows in the rows that use it, as with any other weight.
TEST(QuantisedWeight, NanAndInfinityAreNotHidden) {
  for (const WeightFormat format : kQuantised) {
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      at::Tensor w = at::randn({20, 40});
      w[3][35] = value;
      at::Tensor y = at::empty({2, 20});
      Linear(at::randn({2, 40}), PackWeight(w, format), {}, y);
      EXPECT_TRUE(y.select(1, 3).isfinite().logical_not().all().item<bool>()) << value;
      EXPECT_EQ(y.isfinite().logical_not().sum().item<int64_t>(), 2) << value;
    }
  }
}

TEST(QuantisedLinear, RefusesOtherPanels) {
  const PackedWeight int8 = PackWeight(at::randn({20, 40}), WeightFormat::kInt8);
  PackedWeight wrong = int8;
  wrong.format = WeightFormat::kInt4;
  at::Tensor x = at::randn({2, 40}), y = at::empty({2, 20});
  EXPECT_THROW(Linear(x, wrong, {}, y), c10::Error);
  wrong.format = static_cast<WeightFormat>(9);
  EXPECT_THROW(Linear(x, wrong, {}, y), c10::Error);
  at::Tensor longer = at::randn({2, 65});
  EXPECT_THROW(Linear(longer, int8, {}, y), c10::Error);
  EXPECT_THROW(PackWeight(longer, WeightFormat::kFloat8), c10::Error);  // CUDA only
}

}  // namespace
}  // namespace normserve::kernels
