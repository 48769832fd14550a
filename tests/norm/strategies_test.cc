// SPDX-License-Identifier: Apache-2.0
// Each strategy's plan against its formula, written out here in float64.
#include "norm/strategies.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "norm/bhyt_parts.h"
#include "norm/fake_tensors.h"
#include "norm/freeze.h"

namespace normserve::norm {
namespace {

using kernels::NormStat;
using testing::HasSubstr;

NormPlan Plan(const NormInputs& in) {
  auto plan = PlanNorms(in);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(FreezeLayer(in, 0, plan->layers[0]).ok());
  EXPECT_TRUE(FreezeLayer(in, 1, plan->layers[1]).ok());
  EXPECT_TRUE(FreezeModelNorms(in, *plan).ok());
  return *plan;
}

at::Tensor X() {
  return at::tensor({0.5, -1.25, 2.0, 0.0, 3.5, -0.75}, at::kDouble).reshape({1, 6});
}

// What the kernel makes of a spec, in double. `carried` is the statistic of an earlier site.
at::Tensor Normed(const NormSpec& spec, double carried = 0.0) {
  const at::Tensor x = X().to(at::kFloat);
  at::Tensor y = at::empty_like(x);
  at::Tensor stat = at::full({1}, static_cast<float>(carried));
  kernels::NormOp(x, spec.op, stat, y);
  return y.to(at::kDouble);
}

void ExpectNear(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_LE((got - expected).abs().max().item<double>(), 2e-6) << got << expected;
}

at::Tensor Gamma(double scale = 1.0) { return (1.0 + at::arange(6, at::kDouble) * 0.1) * scale; }
double MeanSquare() { return X().square().mean().item<double>(); }

TEST(Strategies, UnknownNameListsTheKnownOnes) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "batchnorm");
  EXPECT_THAT(std::string(PlanNorms(in).status().message()),
              HasSubstr("rms, bhyt, bhytline, bhytstar, bhytstar_mean, lns, peri, dyt"));
  in.family = Family::kTorchtitan;
  EXPECT_THAT(std::string(PlanNorms(in).status().message()),
              HasSubstr("rmsnorm, fused_rmsnorm, layernorm, np_layernorm"));
}

TEST(Strategies, Rms) {
  FakeTensors source;
  const NormPlan plan = Plan(LlamaInputs(source, "rms"));
  const at::Tensor expected = Gamma() * X() / std::sqrt(MeanSquare() + 1e-5);
  ExpectNear(Normed(*plan.layers[1].at(NormSite::attn_in)), expected);
  ExpectNear(Normed(*plan.final), expected);
  EXPECT_FALSE(plan.layers[0].at(NormSite::attn_out));
  EXPECT_EQ(source.linear_looks, 0);
}

TEST(Strategies, LnsScalesByTheRootOfTheLayerNumber) {
  FakeTensors source;
  const NormPlan plan = Plan(LlamaInputs(source, "lns"));
  const at::Tensor plain = Gamma() * X() / std::sqrt(MeanSquare() + 1e-5);
  ExpectNear(Normed(*plan.layers[0].at(NormSite::attn_in)), plain);
  ExpectNear(Normed(*plan.layers[1].at(NormSite::mlp_in)), plain * 2.0 / std::sqrt(2.0));
  ExpectNear(Normed(*plan.final), plain);
}

TEST(Strategies, Dyt) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "dyt");
  for (const char* site : {"l.0.in", "l.0.post", "l.1.in", "l.1.post", "final"}) {
    source.tensors[std::string(site) + ".alpha"] = at::full({1}, 0.7f);
  }
  source.tensors["final.bias"] = at::full({6}, 0.25f);
  const NormPlan plan = Plan(in);
  const at::Tensor expected = Gamma() * at::tanh(X() * static_cast<double>(0.7f));
  ExpectNear(Normed(*plan.layers[0].at(NormSite::attn_in)), expected);
  ExpectNear(Normed(*plan.final), expected + 0.25);
}

TEST(Strategies, PeriHasFourNormsAndAnOptionalOneOnTheEmbeddings) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "peri");
  in.names.layer[static_cast<size_t>(NormSite::attn_out)] = "out";
  in.names.layer[static_cast<size_t>(NormSite::mlp_out)] = "mlp_out";
  in.names.embed_out = "embed";
  for (const std::string layer : {"l.0.", "l.1."}) {
    source.tensors[layer + "out.weight"] = at::ones({6});
    source.tensors[layer + "mlp_out.weight"] = at::ones({6});
  }
  NormPlan plan = Plan(in);
  EXPECT_FALSE(plan.embed_out);
  ExpectNear(Normed(*plan.layers[1].at(NormSite::attn_out)),
             X() / std::sqrt(MeanSquare() + 1e-5));
  source.tensors["embed.weight"] = at::ones({6});
  plan = Plan(in);
  EXPECT_TRUE(plan.embed_out);
  source.tensors.erase("l.1.mlp_out.weight");
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("l.1.mlp_out.weight"));
}

TEST(Strategies, LayerNormKinds) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "layernorm");
  in.family = Family::kTorchtitan;
  const at::Tensor centred = X() - X().mean();
  const at::Tensor plain = centred / std::sqrt(centred.square().mean().item<double>() + 1e-5);
  ExpectNear(Normed(*Plan(in).final), Gamma() * plain);
  in.norm_type = "np_layernorm";
  ExpectNear(Normed(*Plan(in).final), plain);
  in.family = Family::kNanoGpt;
  in.norm_type = "layernorm";
  in.layer_norm_bias = true;
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("l.0.in.bias"));
}

TEST(Strategies, BhytStarAsCodedAndAsWritten) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "bhytstar");
  in.bhyt.kappa_schedule = "decay";
  const double kappa = 10.0 / std::sqrt(2.0);  // layer 1 counts as 2
  ExpectNear(Normed(*Plan(in).layers[1].at(NormSite::attn_in)),
             Gamma() * at::tanh(2.0 / kappa / std::sqrt(MeanSquare() + 1e-6) * X()));
  in.norm_type = "bhytstar_mean";
  const double mean = X().mean().item<double>();
  const double s = std::sqrt((X() - mean).square().mean().item<double>() + 1e-6);
  ExpectNear(Normed(*Plan(in).layers[1].at(NormSite::mlp_in)),
             Gamma(2.0) * at::tanh(3.0 * X() / (kappa * s + std::abs(mean))));
  EXPECT_EQ(Plan(in).final->op.numbers.phi, kernels::NormPhi::kIdentity);
}

// c_attn by the paper's formula, with V repeated per head, as the definition has it.
double EnergyByDefinition(const FakeTensors& source, int64_t layer, double t) {
  const std::string prefix = "l." + std::to_string(layer) + ".";
  const at::Tensor v = source.tensors.at(prefix + "v").to(at::kDouble).repeat({2, 1});
  const at::Tensor o = source.tensors.at(prefix + "o").to(at::kDouble);
  return at::matmul(v.t(), o.t()).square().sum().item<double>() / (t * 6.0);
}

TEST(Bhyt, AttentionEnergyEqualsItsDefinition) {
  FakeTensors source;
  LlamaInputs(source, "bhyt");
  const double energy =
      AttentionEnergy(source.tensors["l.0.v"], source.tensors["l.0.o"], 2, 1, 4, 5);
  EXPECT_NEAR(energy, EnergyByDefinition(source, 0, 5.0), 1e-12);
}

TEST(Bhyt, SecondPointCarriesTheFirstOnesStatistic) {
  FakeTensors source;
  const NormInputs in = LlamaInputs(source, "bhyt");
  const NormPlan plan = Plan(in);
  const NormSpec& second = *plan.layers[1].at(NormSite::mlp_in);
  EXPECT_EQ(second.op.numbers.stat, NormStat::kCarried);
  EXPECT_EQ(second.carried_from, NormSite::attn_in);
  const double corr = EnergyByDefinition(source, 1, 5.0) * (2.0 / 10.0) * (2.0 / 10.0);
  EXPECT_NEAR(second.op.numbers.var_add, corr, 1e-7);
  const double carried = 1.75;
  ExpectNear(Normed(second, carried),
             Gamma(2.0) * at::tanh(3.0 / 10.0 / std::sqrt(carried + corr + 1e-6) * X()));
}

TEST(Bhyt, SecondPointOfEveryMethod) {
  SecondPointInputs in;
  in.c_attn = 3.0;
  in.input_lam = 4.0;
  in.kappa = 8.0;  // corr = 0.75
  in.var_beta = 2.0;
  in.var_eta = 0.5;
  in.var_alpha = 3.0;
  in.var_cross_beta = 0.25;
  const auto expect = [&](const char* method, float mul, float add) {
    const SecondPoint point = DeriveSecondPoint(method, in);
    EXPECT_FLOAT_EQ(point.var_mul, mul) << method;
    EXPECT_FLOAT_EQ(point.var_add, add) << method;
  };
  expect("baseline", 1.0f, 0.75f);
  expect("beta", 1.0f, 1.5f);
  expect("eta", 1.5f, 0.0f);
  expect("residual_aware", 1.25f, 2.25f);
  in.gamma_mean_square = 2.0;
  in.calibration = 0.5;
  expect("baseline", 0.5f, 0.75f);
  expect("residual_aware", 0.625f, 2.25f);
  expect("eta", 0.75f, 0.0f);
}

TEST(Bhyt, KappaSchedules) {
  BhytOptions options;
  options.kappa = 6.0;
  EXPECT_DOUBLE_EQ(KappaOf(options, 4), 6.0);
  options.kappa_schedule = "decay";
  EXPECT_DOUBLE_EQ(KappaOf(options, 4), 3.0);
  options.kappa_schedule = "grow";
  EXPECT_DOUBLE_EQ(KappaOf(options, 4), 12.0);
  options.kappa_schedule = "mild_grow";
  EXPECT_DOUBLE_EQ(KappaOf(options, 16), 12.0);
}

TEST(Bhyt, ExactLayersMeasureAndNeedNoSeqLen) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "bhytline");
  in.bhyt.seq_len.reset();
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("--bhyt-seq-len"));
  in.bhyt.exact_layers = 1;
  in.bhyt.exact_layer_list = {1};
  const NormPlan plan = Plan(in);
  for (const LayerNorms& layer : plan.layers) {
    EXPECT_EQ(layer.at(NormSite::mlp_in)->op.numbers.stat, NormStat::kMeanSquare);
  }
  EXPECT_EQ(source.linear_looks, 0);
}

TEST(Bhyt, LayersOutsideTheRangeFallBack) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "bhyt");
  in.bhyt.layer_range = {1, 1};
  source.tensors.erase("l.0.in.lam");
  source.tensors.erase("l.0.post.lam");
  NormPlan plan = Plan(in);
  EXPECT_EQ(plan.layers[0].at(NormSite::attn_in)->op.numbers.phi, kernels::NormPhi::kIdentity);
  EXPECT_EQ(plan.layers[1].at(NormSite::mlp_in)->op.numbers.stat, NormStat::kCarried);
  in.bhyt.fallback_norm_type = "bhytstar";
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("l.0.in.lam"));
}

TEST(Bhyt, FinalNormFollowsLastLayerLam) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "bhyt");
  in.bhyt.last_layer_lam = 6.0;
  in.bhyt.kappa_schedule = "grow";
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("final.lam"));
  source.tensors["final.lam"] = at::full({1}, 4.0f);
  ExpectNear(Normed(*Plan(in).final), Gamma() * at::tanh(4.0 / (10.0 * std::sqrt(3.0)) /
                                                      std::sqrt(MeanSquare() + 1e-6) * X()));
}

TEST(Bhyt, VarParametersComeFromTheFileAndNowhereElse) {
  FakeTensors source;
  NormInputs in = LlamaInputs(source, "bhyt");
  in.bhyt.var_approx_method = "residual_aware";
  source.tensors["l.0.var_alpha"] = at::full({}, 2.0f);
  EXPECT_THAT(std::string(PlanNorms(in).status().message()), HasSubstr("l.0.var_cross_beta"));
}

TEST(Freeze, RefusesWhatTheLayerBodyCannotRun) {
  FakeTensors source;
  const NormInputs in = LlamaInputs(source, "bhyt");
  const NormPlan good = Plan(in);
  LayerNorms layer = good.layers[0];
  layer.at(NormSite::attn_in).reset();
  EXPECT_FALSE(FreezeLayer(in, 0, layer).ok()) << "carried from nothing";
  layer = good.layers[0];
  layer.at(NormSite::attn_out) = layer.at(NormSite::mlp_in);
  EXPECT_FALSE(FreezeLayer(in, 0, layer).ok()) << "carried at a site that has no statistic";
  layer = good.layers[0];
  layer.at(NormSite::attn_in)->op.gamma = at::ones({5});
  EXPECT_FALSE(FreezeLayer(in, 0, layer).ok()) << "gamma too narrow";
  layer = good.layers[0];
  layer.at(NormSite::mlp_in)->op.numbers.var_add = NAN;
  EXPECT_FALSE(FreezeLayer(in, 0, layer).ok()) << "not a number";
}

TEST(Describe, OneLinePerNorm) {
  FakeTensors source;
  const NormPlan plan = Plan(LlamaInputs(source, "bhyt"));
  EXPECT_EQ(DescribeNorm(*plan.layers[0].at(NormSite::attn_in)),
            "mean_square tanh gain=0.2 eps=1e-06 gamma");
  EXPECT_THAT(DescribeNorm(*plan.layers[0].at(NormSite::mlp_in)),
              testing::StartsWith("carried(attn_in) tanh gain=0.3 eps=1e-06 var_mul=1 var_add="));
}

}  // namespace
}  // namespace normserve::norm
