// SPDX-License-Identifier: Apache-2.0
// The golden arrays that exist for one case only: T in c_attn, calibration, left padding, a second
// checkpoint in one folder, and the trained demo models.
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "kernels/read_ahead.h"
#include "model/golden_case.h"
#include "nlohmann/json.hpp"

namespace normserve::model {
namespace {

constexpr double kTolerance = 1e-4;

std::unique_ptr<CausalLm> Load(const std::string& directory, const LoadOptions& options = {}) {
  auto lm = CausalLm::Load(directory, options);
  EXPECT_TRUE(lm.ok()) << lm.status();
  return lm.ok() ? std::move(*lm) : nullptr;
}

// The first `tokens` of each row, one sequence each.
at::Tensor RowsLogits(CausalLm& lm, const GoldenCase& golden, size_t tokens) {
  auto rows = golden.Rows();
  for (auto& row : rows) row.resize(tokens);
  SequenceRunner runner(lm, static_cast<int64_t>(rows.size()), 16);
  return runner.Feed(rows);
}

TEST(SeqLen, ConfigDecidesWithoutTheFlag) {
  const GoldenCase golden = OpenGolden("golden/bhyt_seqlen");
  const auto lm = Load("golden/bhyt_seqlen");
  EXPECT_LE(MaxAbsDifference(RowsLogits(*lm, golden, 10), golden.Array("T.precompute48.logits")),
            kTolerance);
}

TEST(SeqLen, FlagOverridesTheConfig) {
  const GoldenCase golden = OpenGolden("golden/bhyt_seqlen");
  for (int64_t t : {1, 5, 10}) {
    LoadOptions options;
    options.bhyt_seq_len = t;
    const auto lm = Load("golden/bhyt_seqlen", options);
    const std::string array = "T.fresh_first" + std::to_string(t) + ".logits";
    EXPECT_LE(MaxAbsDifference(RowsLogits(*lm, golden, static_cast<size_t>(t)),
                               golden.Array(array)),
              kTolerance)
        << array;
  }
}

// One step per token must equal the authors' full forward over the same tokens.
TEST(Calibration, AppliesInDecodeAsInPrefill) {
  const GoldenCase golden = OpenGolden("golden/bhyt_calibration");
  const auto lm = Load("golden/bhyt_calibration");
  std::vector<int32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.generated.begin(), golden.generated.end());
  const at::Tensor logits =
      LogitsInChunks(*lm, tokens, std::vector<size_t>(tokens.size(), 1));
  const at::Tensor expected = golden.Array("full_forward_on_generated");
  const int64_t first = static_cast<int64_t>(golden.prompt.size()) - 1;
  EXPECT_LE(MaxAbsDifference(logits.slice(0, first, first + expected.size(0)), expected),
            kTolerance);
}

TEST(LeftPadding, UnpaddedSequencesEqualPaddedOnes) {
  const GoldenCase golden = OpenGolden("golden/bhyt_leftpad_batch");
  const auto lm = Load("golden/bhyt_leftpad_batch");
  const at::Tensor ids = golden.Array("pad.input_ids");
  const at::Tensor mask = golden.Array("pad.attention_mask");
  const at::Tensor generated = golden.Array("pad.generated_ids");
  const at::Tensor expected = golden.Array("pad.gen_logits");
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const int64_t length = mask[r].sum().item<int64_t>();
    prompts.push_back(Int32Row(ids[r].slice(0, ids.size(1) - length)));
  }
  SequenceRunner runner(*lm, ids.size(0), 32);
  at::Tensor logits = runner.Feed(prompts);
  std::vector<int64_t> last;
  int64_t end = 0;
  for (const auto& prompt : prompts) last.push_back((end += static_cast<int64_t>(prompt.size())) - 1);
  for (int64_t step = 0; step < expected.size(1); ++step) {
    std::vector<std::vector<int32_t>> next;
    for (int64_t r = 0; r < ids.size(0); ++r) {
      const at::Tensor row = logits[step == 0 ? last[static_cast<size_t>(r)] : r];
      EXPECT_LE(MaxAbsDifference(row, expected[r][step]), kTolerance)
          << "row " << r << " step " << step;
      next.push_back({static_cast<int32_t>(generated[r][step].item<int64_t>())});
    }
    logits = runner.Feed(next);
  }
}

// The bfloat16 export of simplegpt_dcp holds other weights than the float32 one beside it.
TEST(SimpleGptDcp, WeightsOnlyExport) {
  const std::string from = "golden/simplegpt_dcp";
  const GoldenCase golden = OpenGolden(from, "weights_only_bf16");
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "normserve_weights_only_bf16";
  std::filesystem::create_directories(folder);
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(from + "/config.json", folder / "config.json", overwrite);
  std::filesystem::copy_file(from + "/model.weights_only_bf16.safetensors",
                             folder / "model.safetensors", overwrite);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LoadOptions options;
    options.dtype = dtype;
    const auto lm = Load(folder, options);
    EXPECT_LE(MaxAbsDifference(RowsLogits(*lm, golden, 12), golden.Array("logits")), 0.25);
  }
  std::filesystem::remove_all(folder);
}

// A chunk that is not a prompt's last asks for no logits at all; others for some rows, and the last layer then makes
// no more than those: with BHyT's carried statistic and without it, with norms inside the blocks and on both sides of
// them, and with learned positions.
TEST(LogitsRows, AnySubsetAndNone) {
  for (const std::string name : {"golden/bhyt_gamma_var", "golden/bhytstar_last0", "golden/sg_simplegpt_rms_gqa_llama3",
                                 "golden_own/peri", "golden_own/nanogpt"}) {
    SCOPED_TRACE(name);
    const GoldenCase golden = OpenGolden(name);
    const auto lm = Load(name);
    ASSERT_NE(lm, nullptr);
    ASSERT_GE(golden.prompt.size(), 10u);
    const at::Tensor whole = LogitsInChunks(*lm, golden.prompt, {golden.prompt.size()});
    SequenceRunner some(*lm, 1, static_cast<int64_t>(golden.prompt.size()));
    const at::Tensor picked = some.FeedFor({golden.prompt}, {9, 2, 2});
    EXPECT_TRUE(picked.equal(at::stack({whole[9], whole[2], whole[2]})));
    SequenceRunner none(*lm, 1, 16);
    const std::vector<int32_t> first(golden.prompt.begin(), golden.prompt.begin() + 9);
    EXPECT_EQ(none.FeedFor({first}, {}).size(0), 0);
    EXPECT_TRUE(none.Feed({{golden.prompt[9]}})[0].equal(whole[9]));
  }
}

at::Tensor Ints(const std::vector<int32_t>& values) { return at::tensor(at::ArrayRef<int32_t>(values), at::kInt); }

// While a layer multiplies, the next one's keys and values are asked for: not its own and, in the last layer, nothing.
TEST(ReadAhead, IsAimedAtTheNextLayer) {
  const auto lm = Load("golden/bhyt_rms_gqa");
  ASSERT_NE(lm, nullptr);
  const int64_t layers = lm->description().layer_count;
  ASSERT_GE(layers, 3);
  KvCache cache = lm->MakeCache(4, 16);
  StepInput input;
  input.token_ids = Ints({3, 1});
  input.positions = Ints({17, 18});
  input.slots = Ints({3 * 16 + 1, 3 * 16 + 2});
  input.token_sequence = Ints({0, 0});
  input.block_tables = Ints({2, 3}).view({1, 2});
  input.logits_rows = Ints({1});
  int64_t seen = 0;
  const Probe probe = [&](std::string_view name, const at::Tensor&) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (name != absl::StrCat("layers.", layer, ".mlp")) continue;
      ++seen;
      const kernels::ReadAhead* ahead = kernels::CurrentReadAhead();
      ASSERT_NE(ahead, nullptr);
      const bool last = layer + 1 == layers;
      const size_t next = static_cast<size_t>(layer) + 1;
      EXPECT_EQ(ahead->keys(), last ? nullptr : cache.keys[next].const_data_ptr()) << name;
      EXPECT_EQ(ahead->values(), last ? nullptr : cache.values[next].const_data_ptr()) << name;
    }
  };
  lm->Forward(input, cache, &probe);
  EXPECT_EQ(seen, layers);
  EXPECT_EQ(kernels::CurrentReadAhead(), nullptr);
}

class DemoTest : public testing::TestWithParam<std::string> {};

TEST_P(DemoTest, GreedyContinuationsMatch) {
  const std::string directory = "../models/demo/" + GetParam();
  const auto lm = Load(directory);
  ASSERT_NE(lm, nullptr);
  std::ifstream file(directory + "/expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const auto& item : expected["greedy"]) {
    const auto prompt = item["prompt_ids"].get<std::vector<int32_t>>();
    const auto ids = item["generated_ids"].get<std::vector<int32_t>>();
    const auto logprobs = item["logprobs"].get<std::vector<double>>();
    SequenceRunner runner(*lm, 1, static_cast<int64_t>(prompt.size() + ids.size()));
    at::Tensor logits = runner.Feed({prompt});
    for (size_t step = 0; step < ids.size(); ++step) {
      const at::Tensor row = logits[logits.size(0) - 1];
      ASSERT_EQ(row.argmax().item<int64_t>(), ids[step]) << item["prompt"] << " step " << step;
      EXPECT_NEAR(LogProb(row, ids[step]), logprobs[step], 2e-4) << item["prompt"];
      logits = runner.Feed({{ids[step]}});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DemoTest, testing::Values("bhyt-kjv", "simplegpt-kjv"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

}  // namespace
}  // namespace normserve::model
