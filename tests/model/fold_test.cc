// SPDX-License-Identifier: Apache-2.0
// Folded against unfolded models end to end, with the bound for each precision stated here:
//   float32 weights and activations: 1e-4 on the logits (rounding of the folded products)
//   bfloat16 activations: 0.25 at most and 0.03 in the mean, the noise of bfloat16 itself, because
//   folding rounds every weight once more. Hence off by default for 16-bit checkpoints.
#include <gtest/gtest.h>

#include "model/golden_case.h"

namespace normserve::model {
namespace {

at::Tensor Logits(const GoldenCase& golden, LoadOptions::Fold fold, at::ScalarType dtype,
                  size_t* folds = nullptr) {
  LoadOptions options;
  options.fold = fold;
  options.dtype = dtype;
  options.bhyt_seq_len = 10;
  auto lm = CausalLm::Load(golden.model_directory, options);
  EXPECT_TRUE(lm.ok()) << lm.status();
  if (folds != nullptr) *folds = (*lm)->norms().folded.size();
  SequenceRunner runner(**lm, 2, 16);
  return runner.Feed(golden.Rows());
}

class FoldTest : public testing::TestWithParam<std::string> {};

TEST_P(FoldTest, FoldedStaysWithinItsBound) {
  const GoldenCase golden = OpenGolden(GetParam());
  const at::Tensor f32 = Logits(golden, LoadOptions::Fold::kOff, at::kFloat);
  EXPECT_LE(MaxAbsDifference(f32, Logits(golden, LoadOptions::Fold::kOn, at::kFloat)), 1e-4);
  const at::Tensor bf16 = Logits(golden, LoadOptions::Fold::kOff, at::kBFloat16);
  const at::Tensor folded = Logits(golden, LoadOptions::Fold::kOn, at::kBFloat16);
  EXPECT_LE(MaxAbsDifference(bf16, folded), 0.25);
  EXPECT_LE((bf16 - folded).abs().mean().item<double>(), 0.03);
}

TEST_P(FoldTest, DefaultIsOnForFloat32AndOffForSixteenBitWeights) {
  const GoldenCase golden = OpenGolden(GetParam());
  size_t folds = 0;
  Logits(golden, LoadOptions::Fold::kAuto, at::kFloat, &folds);
  EXPECT_EQ(folds == 0, golden.bfloat16);
  Logits(golden, LoadOptions::Fold::kOff, at::kFloat, &folds);
  EXPECT_EQ(folds, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Some, FoldTest,
    testing::Values("golden/bhyt_bias_normfold", "golden/bhyt_gamma_var", "golden/bhyt_rms_gqa",
                    "golden/bhytstar_last0", "golden/sg_simplegpt_rms_gqa_llama3",
                    "golden/sg_preqknorm_rms_gqa_llama3", "golden/bhyt_bf16_varfp32"),
    [](const auto& info) { return info.param.substr(info.param.find('/') + 1); });

}  // namespace
}  // namespace normserve::model
