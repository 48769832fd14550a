// SPDX-License-Identifier: Apache-2.0
// PackWeight, Linear and Embed of the CUDA glue, on emulated kernels: int8 weights are the CPU's bit for bit,
// float8 weights LibTorch's, every format multiplies as its numbers say.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kernel_plugin.h"
#include "kernels/ops.h"

namespace normserve::kernels {
namespace {

// Rows of ordinary, tiny, large and no size, some not finite.
std::vector<at::Tensor> Weights() {
  std::vector<at::Tensor> all;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{20, 40}, {7, 1}, {33, 100}, {3, 64}}) {
    at::Tensor w = at::randn({n, k});
    w[0] *= 1e-30;
    w[1] *= 1e30;
    w[2] = 0.0;
    all.push_back(w);
    all.push_back(w.to(at::kBFloat16));
  }
  return all;
}

// Packs on the CPU before its kernels are replaced.
class Packed : public testing::Environment {
 public:
  void SetUp() override {
    for (const at::Tensor& w : Weights()) {
      weights.push_back(w);
      cpu_int8.push_back(PackWeight(w, WeightFormat::kInt8));
    }
    at::Tensor broken = at::randn({3, 70});
    broken[0][3] = NAN;
    broken[1][69] = -INFINITY;
    not_finite = broken;
    const auto opened = OpenKernelPlugin("normserve_cuda_emulated.so", 0);
    ASSERT_TRUE(opened.ok()) << opened.status();
  }
  std::vector<at::Tensor> weights;
  std::vector<PackedWeight> cpu_int8;
  at::Tensor not_finite;
};
Packed* const packed = static_cast<Packed*>(testing::AddGlobalTestEnvironment(new Packed));

const uint8_t* Row(const PackedWeight& w, int64_t output) {
  return w.panels.const_data_ptr<uint8_t>() + output * w.panels.stride(0);
}

// The numbers of a packed weight, [N, K] float32: what Embed reads back.
at::Tensor ReadBack(const PackedWeight& w) {
  at::Tensor out = at::empty({w.out_features, w.in_features});
  Embed(at::arange(w.out_features, at::kInt), w, 1.0f, {}, {}, out);
  return out;
}

TEST(LinearCudaOp, Int8WeightsAreTheCpus) {
  for (size_t i = 0; i < packed->weights.size(); ++i) {
    const PackedWeight cuda = PackWeight(packed->weights[i], WeightFormat::kInt8);
    const int64_t n = cuda.out_features, k = cuda.in_features;
    const auto* groups = reinterpret_cast<const Int8Group*>(packed->cpu_int8[i].panels.const_data_ptr());
    for (int64_t o = 0; o < n; ++o) {
      for (int64_t at = 0; at < k; ++at) {
        const Int8Group& group = groups[o / kPanel * GroupsOf(k) + at / kGroup];
        uint16_t scale = 0;
        std::memcpy(&scale, Row(cuda, o) + RowScalesAt(WeightFormat::kInt8, k) + 2 * (at / kGroup), 2);
        ASSERT_EQ(static_cast<int8_t>(Row(cuda, o)[at]), group.Value(o % kPanel, at % kGroup))
            << i << " " << o << " " << at;
        ASSERT_EQ(scale, group.scale[o % kPanel]) << i << " " << o << " " << at;
      }
    }
  }
}

TEST(LinearCudaOp, Float8WeightsAreLibTorchs) {
  for (const at::Tensor& w : packed->weights) {
    const PackedWeight cuda = PackWeight(w, WeightFormat::kFloat8);
    const at::Tensor wide = w.to(at::kFloat), scale = wide.abs().amax(1, /*keepdim=*/true) / 448.0;
    const at::Tensor want = (wide / scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
    EXPECT_TRUE(at::equal(ReadBack(cuda), want.nan_to_num(0.0)));
  }
}

TEST(LinearCudaOp, WhatIsNotFiniteStaysSo) {
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFloat8}) {
    at::Tensor y = at::empty({1, 3});
    Linear(at::randn({1, 70}), PackWeight(packed->not_finite, format), {}, y);
    EXPECT_FALSE(std::isfinite(y[0][0].item<float>()));
    EXPECT_FALSE(std::isfinite(y[0][1].item<float>()));
    EXPECT_TRUE(std::isfinite(y[0][2].item<float>()));
  }
}

TEST(LinearCudaOp, EveryFormatMultipliesItsNumbers) {
  for (const WeightFormat format : {WeightFormat::kFloat32, WeightFormat::kBFloat16, WeightFormat::kInt8,
                                    WeightFormat::kFloat8}) {
    const PackedWeight w = PackWeight(at::randn({50, 100}), format);
    const at::Tensor x = at::randn({37, 100}), bias = at::randn({50});
    at::Tensor y = at::empty({37, 50});
    Linear(x, w, bias, y);
    EXPECT_TRUE(at::allclose(y, at::linear(x, ReadBack(w), bias), 1e-5, 1e-5)) << static_cast<int>(format);
    for (const int64_t row : {0, 15, 16, 36}) {  // 16 rows are one launch
      at::Tensor alone = at::empty({1, 50});
      Linear(x.narrow(0, row, 1), w, bias, alone);
      EXPECT_TRUE(at::equal(alone[0], y[row])) << static_cast<int>(format) << " " << row;
    }
  }
}

// The stand-in of cuBLAS sums as our kernel does, so that only the cutting into products can differ.
TEST(LinearCudaOp, ProductsOfAFixedNumberOfRows) {
  for (const WeightFormat format : {WeightFormat::kFloat32, WeightFormat::kInt8}) {
    PackedWeight w = PackWeight(at::randn({50, 100}), format);
    const at::Tensor x = at::randn({12, 100}), bias = at::randn({50});
    at::Tensor whole = at::empty({12, 50}), cut = at::empty({12, 50});
    Linear(x, w, bias, whole);
    w.rows_per_product = 4;
    Linear(x, w, bias, cut);
    // A quantised weight is widened first, and then summed as one without scales.
    EXPECT_TRUE(at::allclose(cut, whole, 1e-5, 1e-5));
    if (!IsQuantised(format)) {
      EXPECT_TRUE(at::equal(cut, whole));
    }
    w.rows_per_product = 5;
    EXPECT_THROW(Linear(x, w, bias, cut), c10::Error);
  }
}

TEST(LinearCudaOp, Float16WeightsAreWidenedWhenPacked) {
  const at::Tensor w = at::randn({20, 40}).to(at::kHalf), x = at::randn({2, 40});
  const PackedWeight packed = PackWeight(w, WeightFormat::kFloat16);
  EXPECT_EQ(packed.panels.scalar_type(), at::kFloat);
  at::Tensor y = at::empty({2, 20}), want = at::empty({2, 20});
  Linear(x, packed, {}, y);
  Linear(x, PackWeight(w.to(at::kFloat), WeightFormat::kFloat32), {}, want);
  EXPECT_TRUE(at::equal(y, want));
}

TEST(LinearCudaOp, RefusesInt4AndOtherWeights) {
  const at::Tensor w = at::randn({20, 40});
  EXPECT_THROW(PackWeight(w, WeightFormat::kInt4), c10::Error);
  EXPECT_THROW(PackWeight(w, static_cast<WeightFormat>(7)), c10::Error);
  at::Tensor x = at::randn({2, 40}), y = at::empty({2, 20});
  PackedWeight wrong = PackWeight(w, WeightFormat::kInt8);
  wrong.format = WeightFormat::kFloat8;
  EXPECT_THROW(Linear(x, wrong, {}, y), c10::Error);
  wrong.format = WeightFormat::kFloat32;
  EXPECT_THROW(Linear(x, wrong, {}, y), c10::Error);
}

}  // namespace
}  // namespace normserve::kernels
