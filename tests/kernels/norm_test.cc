// SPDX-License-Identifier: Apache-2.0
// Norm and ResidualNorm: every implementation (double oracle, eager ATen, each Highway target) on every
// shape and layout; fused equals unfused; a row never sees its neighbours.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/simd_target.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kWidths[] = {1, 8, 17, 64, 100, 101, 2048, 3584, 4096, 5120, 16384};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

struct Case {
  std::string name;
  Norm norm;
};

// The whole family, with parameters of the given width.
std::vector<Case> Family(int64_t width) {
  const at::Tensor gamma = at::randn({width}) * 0.3 + 1.0, beta = at::randn({width}) * 0.3;
  std::vector<Case> cases;
  const auto add = [&](const char* name, NormStat stat, NormPhi phi, NormCentring centring,
                       float gain, bool with_gamma, bool with_beta) -> NormNumbers& {
    Norm norm;
    norm.numbers.stat = stat;
    norm.numbers.phi = phi;
    norm.numbers.centring = centring;
    norm.numbers.gain = gain;
    norm.numbers.eps = 1e-5f;
    if (with_gamma) norm.gamma = gamma;
    if (with_beta) norm.beta = beta;
    cases.push_back({name, norm});
    return cases.back().norm.numbers;
  };
  const auto id = NormPhi::kIdentity, tanh = NormPhi::kTanh;
  const auto free = NormCentring::kNone, centred = NormCentring::kSubtractMean;
  add("rms", NormStat::kMeanSquare, id, free, 1.0f, true, false);
  add("lns", NormStat::kMeanSquare, id, free, 0.37796447f, true, false);
  add("np_layernorm", NormStat::kVariance, id, centred, 1.0f, false, false);
  add("layernorm", NormStat::kVariance, id, centred, 1.0f, true, true);
  add("bhyt", NormStat::kMeanSquare, tanh, free, 0.8f, true, false);
  NormNumbers& second = add("bhyt_second", NormStat::kCarried, tanh, free, 0.8f, true, false);
  second.var_mul = 1.25f;
  second.var_add = 0.5f;
  add("bhytstar_mean", NormStat::kVariance, tanh, free, 0.8f, true, false).mean_coef = 0.25f;
  add("dyt", NormStat::kNone, tanh, free, 0.7f, true, true);
  add("identity", NormStat::kNone, id, free, 1.0f, false, false);
  for (const int64_t groups : {4, 8}) {
    if (width % groups != 0 || width < 64) continue;
    add("rms_groups", NormStat::kMeanSquare, id, free, 1.0f, true, false).group_width =
        static_cast<int32_t>(width / groups);
    add("layernorm_groups", NormStat::kVariance, id, centred, 1.0f, true, true).group_width =
        static_cast<int32_t>(width / groups);
  }
  return cases;
}

// The second implementation: eager ATen operators in float32.
at::Tensor EagerNorm(const at::Tensor& x, const Norm& norm, const at::Tensor& carried) {
  const NormNumbers& n = norm.numbers;
  const int64_t group = n.group_width > 0 ? n.group_width : x.size(1);
  const at::Tensor g = x.to(at::kFloat).reshape({x.size(0), x.size(1) / group, group});
  const at::Tensor mean = g.mean(2, true);
  at::Tensor stat = g.square().mean(2, true);
  if (n.stat == NormStat::kVariance) stat = (g - mean).square().mean(2, true);
  if (n.stat == NormStat::kCarried) stat = carried.view({-1, 1, 1}) * n.var_mul + n.var_add;
  at::Tensor scale = n.gain / ((stat + n.eps).sqrt() + mean.abs() * n.mean_coef);
  if (n.stat == NormStat::kNone) scale = at::full_like(stat, n.gain);
  at::Tensor v = (n.centring == NormCentring::kSubtractMean ? g - mean : g) * scale;
  if (n.phi == NormPhi::kTanh) v = v.tanh();
  v = v.reshape(x.sizes());
  if (norm.gamma.defined()) v = v * norm.gamma;
  if (norm.beta.defined()) v = v + norm.beta;
  return v;
}

// Seven different rows: ordinary, tiny, large, shifted, with one massive activation.
at::Tensor SevenRows(int64_t width, at::ScalarType dtype) {
  at::Tensor x = at::randn({7, width});
  x[1] *= 1e-3;
  x[2] *= 300;
  x[3] += 2;
  x[4][width / 2] = 500;
  x[5] *= 1e-20;
  return x.to(dtype);
}

void ExpectNormClose(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  // The oracle is not rounded: a bfloat16 result may be half an ulp off, 2^-8 of its value.
  const double rel = got.scalar_type() == at::kFloat ? 2e-6 : 0x1p-8 * 1.02;
  ExpectClose(got, want, 1e-6, rel, what);
}

// A norm over seven rows, and the truth about it.
struct Expectation {
  Case c;
  at::Tensor x;        // [7, width]
  at::Tensor carried;  // [7]
  OracleNorm oracle;
  at::Tensor eager;

  Expectation(const Case& norm, const at::Tensor& rows)
      : c(norm), x(rows), carried(at::rand({7}) + 0.1), oracle(NormOracle(rows, c.norm, carried)),
        eager(EagerNorm(rows, c.norm, carried)) {}
};

// `rows` rows that repeat the seven.
void Check(const Expectation& e, int64_t rows, Layout layout) {
  const Case& c = e.c;
  const at::Tensor index = at::arange(rows).remainder(7);
  at::Tensor stat = e.carried.index_select(0, index);
  Guarded in(e.x.index_select(0, index), layout);
  Guarded out(rows, e.x.size(1), e.x.scalar_type(), layout);
  NormOp(in.view(), c.norm, stat, out.view());
  const std::string what = c.name + " width " + std::to_string(e.x.size(1)) + " on " +
                           SimdTargetName();
  out.ExpectBandIntact(what.c_str());
  in.ExpectBandIntact(what.c_str());
  const int64_t distinct = std::min<int64_t>(rows, 7);
  const at::Tensor got = out.view().slice(0, 0, distinct);
  ExpectNormClose(got, e.oracle.y.slice(0, 0, distinct), what);
  const double rel = got.scalar_type() == at::kFloat ? 1e-5 : 0x1p-8 * 1.02;
  ExpectClose(got, e.eager.slice(0, 0, distinct), 1e-5, rel, "eager, " + what);
  if (c.norm.numbers.group_width == 0 && c.norm.numbers.stat != NormStat::kNone) {
    ExpectClose(stat.slice(0, 0, distinct), e.oracle.stat.slice(0, 0, distinct), 1e-30, 1e-6,
                "row_stat, " + what);
  }
  // Rows beyond the seventh repeat the first seven and must repeat their bits.
  EXPECT_TRUE(SameBits(out.view(), got.index_select(0, index))) << what;
}

TEST(Norm, ImplementationsAgree) {
  at::manual_seed(1);
  const std::vector<std::string> targets = SimdTargets();
  for (const int64_t width : kWidths) {
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor x = SevenRows(width, dtype);
      for (const Case& c : Family(width)) {
        const Expectation expectation(c, x);
        for (const std::string& target : targets) {
          const SimdTargetScope scope(target);
          for (const Layout layout : kLayouts) Check(expectation, 7, layout);
          Check(expectation, 1, Layout::kOffsetByOne);
        }
      }
    }
  }
}

// vLLM PR 17735: a slice of a wider tensor, and a hidden size that no vector width divides, gave
// silently wrong values.
TEST(Norm, RowStridesAndOddWidthsOverManyRows) {
  at::manual_seed(2);
  for (const int64_t width : kWidths) {
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor x = SevenRows(width, dtype);
      const std::vector<Case> family = Family(width);
      for (const size_t which : {size_t{0}, size_t{4}}) {
        Check(Expectation(family[which], x), 513, Layout::kStrided);
      }
    }
  }
}

TEST(ResidualNorm, FusedEqualsUnfused) {
  at::manual_seed(3);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const int64_t width : {17, 100, 2048}) {
      for (const at::ScalarType dtype : kTypes) {
        const at::Tensor delta = SevenRows(width, dtype), h0 = at::randn({7, width}).to(dtype);
        for (const Case& c : Family(width)) {
          const std::string what = c.name + " on " + target;
          // AddNorm: h rounded, then the norm of the rounded h.
          const at::Tensor carried = at::rand({7}) + 0.1;
          at::Tensor stat = carried.clone(), stat2 = carried.clone();
          Guarded h(h0, Layout::kStrided), y(7, width, dtype, Layout::kOffsetByOne);
          ResidualNorm(h.view(), delta, std::nullopt, c.norm, stat, y.view());
          const at::Tensor sum = h0 + delta;
          EXPECT_TRUE(SameBits(h.view(), sum)) << what;
          at::Tensor y2 = at::empty_like(sum);
          NormOp(sum, c.norm, stat2, y2);
          EXPECT_TRUE(SameBits(y.view(), y2)) << what;
          EXPECT_TRUE(SameBits(stat, stat2)) << what;
          h.ExpectBandIntact("h");
          y.ExpectBandIntact("y");
          if (c.norm.numbers.stat == NormStat::kCarried) continue;
          // NormAddNorm is NormAdd, then Norm.
          at::Tensor a = h0.clone(), b = h0.clone(), ya = at::empty_like(a), yb = at::empty_like(a);
          at::Tensor none, sa = carried.clone(), sb = carried.clone();
          ResidualNorm(a, delta, c.norm, c.norm, sa, ya);
          ResidualNorm(b, delta, c.norm, std::nullopt, none, none);
          EXPECT_TRUE(SameBits(a, b)) << what;
          NormOp(b, c.norm, sb, yb);
          EXPECT_TRUE(SameBits(ya, yb)) << what;
          // NormAdd rounds once: in float32 it is Norm and add, in bfloat16 within half an ulp.
          const at::Tensor want = h0.to(at::kDouble) + NormOracle(delta, c.norm, carried).y;
          ExpectClose(a, want, 2e-6, dtype == at::kFloat ? 2e-6 : 0x1p-8 * 1.02, what);
          if (dtype == at::kFloat) {
            at::Tensor n = at::empty_like(delta), sn = carried.clone();
            NormOp(delta, c.norm, sn, n);
            EXPECT_TRUE(SameBits(a, h0 + n)) << what;
          }
        }
      }
    }
  }
}

TEST(Norm, SameBitsForAnyThreadCountAndRowCount) {
  at::manual_seed(4);
  const int64_t width = 2048;
  const at::Tensor x = at::randn({100, width}).to(at::kBFloat16), delta = at::randn_like(x);
  for (const Case& c : Family(width)) {
    const auto run = [&](int64_t from, int64_t to) {
      at::Tensor h = x.slice(0, from, to).clone(), y = at::empty_like(h);
      at::Tensor stat = at::ones({to - from});
      ResidualNorm(h, delta.slice(0, from, to), std::nullopt, c.norm, stat, y);
      return at::cat({h, y}, 1);
    };
    const at::Tensor alone = run(0, 100);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const ScopedPool scope(&pool);
      EXPECT_TRUE(SameBits(run(0, 100), alone)) << c.name << " " << threads;
      EXPECT_TRUE(SameBits(run(41, 42), alone.slice(0, 41, 42))) << c.name << " " << threads;
    }
  }
}

TEST(Norm, InPlace) {
  const at::Tensor x = at::randn({3, 100});
  for (const Case& c : Family(100)) {
    at::Tensor stat = at::ones({3}), stat2 = at::ones({3}), y = at::empty_like(x), z = x.clone();
    NormOp(x, c.norm, stat, y);
    NormOp(z, c.norm, stat2, z);
    EXPECT_TRUE(SameBits(y, z)) << c.name;
  }
}

TEST(Norm, NonFiniteRowsStayInTheirRow) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const at::ScalarType dtype : kTypes) {
      at::Tensor x = at::randn({3, 100}).to(dtype);
      x[1][37] = NAN;
      for (const Case& c : Family(100)) {
        at::Tensor stat = at::ones({3}), y = at::empty_like(x);
        NormOp(x, c.norm, stat, y);
        const at::Tensor nan = y.isnan().sum(1);
        EXPECT_EQ(nan[0].item<int64_t>() + nan[2].item<int64_t>(), 0) << c.name;
        const bool reduces = c.norm.numbers.stat == NormStat::kMeanSquare ||
                             c.norm.numbers.stat == NormStat::kVariance;
        const int64_t group = c.norm.numbers.group_width ? c.norm.numbers.group_width : 100;
        EXPECT_EQ(nan[1].item<int64_t>(), reduces ? group : 1) << c.name << " " << target;
      }
    }
  }
}

// The whole of float32's tanh: near zero, subnormals, the seam between its two formulas, far out.
TEST(Tanh, AccurateOddAndBounded) {
  Norm norm;
  norm.numbers.phi = NormPhi::kTanh;
  at::Tensor x = at::cat({at::linspace(0, 12, 100001), at::logspace(-45, 2, 20001),
                          at::linspace(0.62, 0.63, 5001), at::full({1}, INFINITY)});
  x = at::cat({x, -x}).view({1, -1});
  const int64_t half = x.size(1) / 2;
  const at::Tensor want = x.to(at::kDouble).tanh();
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor y = at::empty_like(x), none;
    NormOp(x, norm, none, y);
    ExpectClose(y, want, 2e-7, 0, target);
    ExpectClose(y, want, 2e-45, 3e-7, target);
    EXPECT_TRUE(at::equal(y.slice(1, 0, half), -y.slice(1, half))) << target;
    EXPECT_LE(y.abs().max().item<float>(), 1.0f) << target;
  }
}

TEST(NormContract, RefusesWhatItCannotDo) {
  Norm norm;
  at::Tensor x = at::zeros({2, 8}), y = at::zeros({2, 8}), none;
  at::Tensor half = at::zeros({2, 8}, at::kHalf), wide = at::zeros({2, 9});
  at::Tensor columns = at::zeros({8, 2}).t();
  EXPECT_THROW(NormOp(half, norm, none, half), c10::Error);
  EXPECT_THROW(NormOp(columns, norm, none, y), c10::Error);
  EXPECT_THROW(NormOp(x, norm, none, wide), c10::Error);
  norm.numbers.group_width = 3;
  EXPECT_THROW(NormOp(x, norm, none, y), c10::Error);
  norm.numbers.group_width = 0;
  norm.gamma = at::ones({7});
  EXPECT_THROW(NormOp(x, norm, none, y), c10::Error);
  norm.gamma = at::Tensor();
  norm.numbers.stat = NormStat::kCarried;
  EXPECT_THROW(NormOp(x, norm, none, y), c10::Error);
  EXPECT_THROW(ResidualNorm(x, y, std::nullopt, Norm{}, none, none), c10::Error);
}

}  // namespace
}  // namespace normserve::kernels
