// SPDX-License-Identifier: Apache-2.0
// LinearResidualNorm is Linear and then ResidualNorm, bit for bit, whether or not the device makes it in one pass.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kWidth = 50, kInputs = 37;

// None, BHyT's second point, DyT and RMSNorm, whose statistic needs the whole row.
std::vector<OptionalNorm> NextNorms() {
  Norm second, dyt, rms;
  second.numbers.stat = NormStat::kCarried;
  second.numbers.phi = dyt.numbers.phi = NormPhi::kTanh;
  second.numbers.var_mul = 1.25f;
  second.numbers.var_add = 0.5f;
  second.numbers.gain = dyt.numbers.gain = 0.7f;
  rms.numbers.stat = NormStat::kMeanSquare;
  second.numbers.eps = rms.numbers.eps = 1e-5f;
  dyt.beta = at::randn({kWidth});
  second.gamma = rms.gamma = dyt.gamma = at::randn({kWidth});
  return {std::nullopt, second, dyt, rms};
}

void Check(int64_t rows, at::ScalarType type, WeightFormat format, const OptionalNorm& next, bool with_bias,
           int64_t inputs = kInputs) {
  const PackedWeight weight = PackWeight(at::randn({kWidth, inputs}), format);
  const at::Tensor bias = with_bias ? at::randn({kWidth}) : at::Tensor(), x = at::randn({rows, inputs}).to(type);
  const at::Tensor before = at::randn({rows, kWidth}).to(type), carried = at::rand({rows}) + 0.5;
  at::Tensor h1 = before.clone(), h2 = before.clone(), stat1 = carried.clone(), stat2 = carried.clone();
  at::Tensor delta1 = at::empty_like(h1), delta2 = at::empty_like(h1);
  at::Tensor y1 = at::zeros({rows, kWidth}, type), y2 = at::zeros({rows, kWidth}, type);
  LinearResidualNorm(x, weight, bias, delta1, h1, next, stat1, y1);
  Linear(x, weight, bias, delta2);
  ResidualNorm(h2, delta2, std::nullopt, next, stat2, y2);
  EXPECT_TRUE(at::equal(h1, h2)) << rows << " " << type;
  EXPECT_TRUE(at::equal(y1, y2)) << rows << " " << type;
  EXPECT_TRUE(at::equal(stat1, stat2)) << rows << " " << type;
  EXPECT_FALSE(at::equal(h1, before));
}

TEST(LinearResidualNorm, IsItsTwoParts) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    SCOPED_TRACE(target);
    for (const int64_t rows : {1, 5, 20}) {
      for (const OptionalNorm& next : NextNorms()) {
        for (const bool bias : {false, true}) {
          Check(rows, at::kFloat, WeightFormat::kFloat32, next, bias);
          Check(rows, at::kFloat, WeightFormat::kBFloat16, next, bias);
          Check(rows, at::kFloat, WeightFormat::kBFloat16Dot, next, bias);
          Check(rows, at::kFloat, WeightFormat::kFloat16, next, bias);
          Check(rows, at::kFloat, WeightFormat::kInt8, next, bias);
          if (!AnotherDevice()) Check(rows, at::kFloat, WeightFormat::kInt4, next, bias);
          Check(rows, at::kBFloat16, WeightFormat::kBFloat16, next, bias);
        }
      }
    }
  }
}

// More rows than one pass over the weights takes, on several threads.
TEST(LinearResidualNorm, InPassesToo) {
  ThreadPool pool(3);
  const ScopedPool scope(&pool);
  for (const WeightFormat format : {WeightFormat::kFloat32, WeightFormat::kBFloat16Dot, WeightFormat::kInt8}) {
    Check(130, at::kFloat, format, NextNorms()[3], false, 2048);
    Check(130, at::kBFloat16, format, NextNorms()[1], true, 2048);
  }
}

TEST(LinearResidualNorm, RefusesWhatDoesNotFit) {
  const PackedWeight weight = PackWeight(at::randn({kWidth, kInputs}), WeightFormat::kFloat32);
  at::Tensor x = at::randn({2, kInputs}), h = at::zeros({2, kWidth}), delta = at::zeros({2, kWidth}), stat;
  at::Tensor narrow = at::zeros({2, kWidth - 1}), y = at::zeros({2, kWidth});
  const OptionalNorm second = NextNorms()[1];
  EXPECT_THROW(LinearResidualNorm(x, weight, {}, delta, narrow, {}, stat, y), c10::Error);
  EXPECT_THROW(LinearResidualNorm(x.narrow(0, 0, 1), weight, {}, delta, h, {}, stat, y), c10::Error);
  EXPECT_THROW(LinearResidualNorm(x, weight, {}, delta, h, second, stat, y), c10::Error) << "no row_stat";
  at::Tensor square = at::zeros({2, kWidth});
  const PackedWeight own = PackWeight(at::randn({kWidth, kWidth}), WeightFormat::kFloat32);
  stat = at::full({2}, 1.0f);
  EXPECT_THROW(LinearResidualNorm(square, own, {}, delta, h, second, stat, square), c10::Error) << "y is x";
  EXPECT_THROW(LinearResidualNorm(square, own, {}, delta, square, second, stat, y), c10::Error) << "h is x";
}

}  // namespace
}  // namespace normserve::kernels
