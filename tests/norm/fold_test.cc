// SPDX-License-Identifier: Apache-2.0
// Each fold keeps the function: folded and unfolded layers are compared on random rows in float64-sized
// tolerances, and what must not fold is left alone.
#include "norm/fold.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normserve::norm {
namespace {

using kernels::RotaryPairs;

const HeadShape kHeads{4, 2, 4};  // 16 query, 8 key columns

at::Tensor Random(at::IntArrayRef shape) {
  return at::randn(shape, at::detail::createCPUGenerator(11), at::TensorOptions().dtype(at::kFloat));
}

NormSpec Spec(int64_t width, bool beta = false) {
  NormSpec spec;
  spec.op.numbers.stat = kernels::NormStat::kMeanSquare;
  spec.op.gamma = 1.0 + 0.3 * Random({width});
  if (beta) spec.op.beta = 0.2 * Random({width});
  return spec;
}

FoldableLayer Linears() {
  FoldableLayer layer;
  layer.qkv.weight = Random({32, 6});
  layer.attn_out.weight = Random({6, 16});
  layer.gate_up.weight = Random({20, 6});
  layer.mlp_out.weight = Random({6, 10});
  return layer;
}

at::Tensor Apply(const FoldableLinear& linear, const std::optional<NormSpec>& norm,
                 const at::Tensor& x) {
  at::Tensor y = x;
  if (norm && norm->op.gamma.defined()) y = y * norm->op.gamma;
  if (norm && norm->op.beta.defined()) y = y + norm->op.beta;
  y = at::matmul(y, linear.weight.t());
  return linear.bias.defined() ? y + linear.bias : y;
}

double Difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(Fold, NormsBeforeLinearsGiveTheirGammaAndBetaAway) {
  LayerNorms norms;
  norms.at(NormSite::attn_in) = Spec(6);
  norms.at(NormSite::mlp_in) = Spec(6, /*beta=*/true);
  FoldableLayer linears = Linears();
  const LayerNorms before = norms;
  const FoldableLayer plain = linears;
  std::vector<std::string> folded;
  FoldLayer(3, kHeads, RotaryPairs::kHalfSplit, norms, linears, folded);
  const at::Tensor x = Random({5, 6});
  for (auto [site, old_linear, new_linear] :
       {std::tuple{NormSite::attn_in, &plain.qkv, &linears.qkv},
        std::tuple{NormSite::mlp_in, &plain.gate_up, &linears.gate_up}}) {
    EXPECT_FALSE(norms.at(site)->op.gamma.defined());
    EXPECT_FALSE(norms.at(site)->op.beta.defined());
    EXPECT_LE(Difference(Apply(*new_linear, norms.at(site), x),
                         Apply(*old_linear, before.at(site), x)),
              1e-5);
  }
  EXPECT_THAT(folded, testing::ElementsAre("layer 3: attn_in into q, k, v",
                                           "layer 3: mlp_in into gate, up"));
  EXPECT_TRUE(plain.qkv.weight.equal(Linears().qkv.weight)) << "the mapped weight was written to";
}

TEST(Fold, ValueGammaGoesIntoTheOutputProjectionPerQueryHead) {
  LayerNorms norms;
  norms.at(NormSite::v) = Spec(8);
  const at::Tensor gamma = norms.at(NormSite::v)->op.gamma;
  FoldableLayer linears = Linears();
  const FoldableLinear plain = linears.attn_out;
  std::vector<std::string> folded;
  FoldLayer(0, kHeads, RotaryPairs::kInterleaved, norms, linears, folded);
  // Attention's output is, per query head, a mix of its kv head's values: heads 0, 1 of kv head 0.
  const at::Tensor values = Random({5, 8});
  const auto heads = [](const at::Tensor& v) {
    return at::cat({v.slice(1, 0, 4), v.slice(1, 0, 4), v.slice(1, 4), v.slice(1, 4)}, 1);
  };
  EXPECT_LE(Difference(Apply(linears.attn_out, std::nullopt, heads(values)),
                       Apply(plain, std::nullopt, heads(values * gamma))),
            1e-5);
  EXPECT_FALSE(norms.at(NormSite::v)->op.gamma.defined());
}

TEST(Fold, UpGammaGoesIntoTheDownProjectionAndGateStays) {
  LayerNorms norms;
  norms.at(NormSite::gate) = Spec(10);
  norms.at(NormSite::up) = Spec(10);
  norms.at(NormSite::attn_out) = Spec(6);
  norms.at(NormSite::mlp_out) = Spec(6);
  const at::Tensor gamma = norms.at(NormSite::up)->op.gamma;
  FoldableLayer linears = Linears();
  const FoldableLinear plain = linears.mlp_out;
  std::vector<std::string> folded;
  FoldLayer(0, kHeads, RotaryPairs::kInterleaved, norms, linears, folded);
  const at::Tensor x = Random({5, 10});
  EXPECT_LE(Difference(Apply(linears.mlp_out, std::nullopt, x),
                       Apply(plain, std::nullopt, x * gamma)),
            1e-5);
  for (NormSite site : {NormSite::gate, NormSite::attn_out, NormSite::mlp_out}) {
    EXPECT_TRUE(norms.at(site)->op.gamma.defined()) << NormSiteName(site);
  }
}

// A scale commutes with a rotation only if both elements of a pair share it.
TEST(Fold, KeyGammaFoldsOnlyIfEqualWithinEachRotaryPair) {
  const at::Tensor halves = at::tensor({1.5f, 0.5f, 1.5f, 0.5f, 2.0f, 3.0f, 2.0f, 3.0f});
  const at::Tensor neighbours = at::tensor({1.5f, 1.5f, 0.5f, 0.5f, 2.0f, 2.0f, 3.0f, 3.0f});
  const auto folds = [&](const at::Tensor& k_gamma, RotaryPairs pairs) {
    LayerNorms norms;
    norms.at(NormSite::q) = Spec(16);
    norms.at(NormSite::k) = Spec(8);
    norms.at(NormSite::k)->op.gamma = k_gamma;
    const at::Tensor q_gamma = norms.at(NormSite::q)->op.gamma;
    FoldableLayer linears = Linears();
    std::vector<std::string> folded;
    FoldLayer(0, kHeads, pairs, norms, linears, folded);
    if (!norms.at(NormSite::k)->op.gamma.defined()) {
      const at::Tensor repeated = at::cat({k_gamma.slice(0, 0, 4), k_gamma.slice(0, 0, 4),
                                           k_gamma.slice(0, 4), k_gamma.slice(0, 4)});
      EXPECT_LE(Difference(norms.at(NormSite::q)->op.gamma, q_gamma * repeated), 1e-6);
      return true;
    }
    EXPECT_TRUE(norms.at(NormSite::q)->op.gamma.equal(q_gamma));
    return false;
  };
  EXPECT_TRUE(folds(halves, RotaryPairs::kHalfSplit));
  EXPECT_FALSE(folds(halves, RotaryPairs::kInterleaved));
  EXPECT_TRUE(folds(neighbours, RotaryPairs::kInterleaved));
  EXPECT_FALSE(folds(neighbours, RotaryPairs::kHalfSplit));
  EXPECT_TRUE(folds(halves, RotaryPairs::kNone));
}

TEST(Fold, FinalNormGoesIntoTheHead) {
  std::optional<NormSpec> final = Spec(6);
  const std::optional<NormSpec> before = final;
  FoldableLinear head{Random({9, 6}), at::Tensor()};
  const FoldableLinear plain = head;
  std::vector<std::string> folded;
  FoldFinal(final, head, folded);
  const at::Tensor x = Random({5, 6});
  EXPECT_LE(Difference(Apply(head, final, x), Apply(plain, before, x)), 1e-5);
  EXPECT_THAT(folded, testing::ElementsAre("final into the head"));
}

TEST(Fold, SixteenBitWeightsBecomeFloat32) {
  LayerNorms norms;
  norms.at(NormSite::attn_in) = Spec(6);
  FoldableLayer linears = Linears();
  linears.qkv.weight = linears.qkv.weight.to(at::kBFloat16);
  linears.gate_up.weight = linears.gate_up.weight.to(at::kBFloat16);
  std::vector<std::string> folded;
  FoldLayer(0, kHeads, RotaryPairs::kHalfSplit, norms, linears, folded);
  EXPECT_EQ(linears.qkv.weight.scalar_type(), at::kFloat);
  EXPECT_EQ(linears.gate_up.weight.scalar_type(), at::kBFloat16) << "nothing was folded into it";
}

}  // namespace
}  // namespace normserve::norm
