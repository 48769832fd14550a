// SPDX-License-Identifier: Apache-2.0
// Every golden case against the library: logits, hidden states and norm outputs layer by layer, greedy
// ids and log-probabilities by incremental decoding, and equal bits however a prefill is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "model/golden_case.h"

namespace normserve::model {
namespace {

using Fold = LoadOptions::Fold;

constexpr double kLogitsTolerance = 1e-4;
constexpr double kLogprobTolerance = 2e-4;
constexpr double kHiddenTolerance = 1e-4;  // relative to the array's largest value, at least 1
constexpr double kBf16Max = 0.25;
constexpr double kBf16Mean = 0.03;

// Absolute for what the authors' code recorded. Ours include layers that nothing normalises, with logits
// of 30: there float32's own rounding is 1e-4 and moves with the compiler, so the bound grows with them.
double LogitsTolerance(const std::string& directory, const at::Tensor& expected) {
  if (directory.rfind("golden_own/", 0) != 0) return kLogitsTolerance;
  return kLogitsTolerance * std::max(1.0, expected.abs().max().item<double>() / 10.0);
}

std::string BaseName(const std::string& directory) {
  return std::filesystem::path(directory).filename();
}

std::unique_ptr<CausalLm> Load(const std::string& directory, LoadOptions options) {
  // config.seq_len is 48 there; the recorded arrays are those of a first forward of 10 tokens.
  if (BaseName(directory) == "bhyt_seqlen" && !options.bhyt_seq_len) options.bhyt_seq_len = 10;
  auto lm = CausalLm::Load(directory, options);
  EXPECT_TRUE(lm.ok()) << lm.status();
  return lm.ok() ? std::move(*lm) : nullptr;
}

// Golden module names -> the probe's sites, within a layer.
const std::map<std::string, std::string>& SiteOfModule() {
  static const auto* names = new std::map<std::string, std::string>{
      {"input_layernorm", "attn_in"},       {"post_attention_layernorm", "mlp_in"},
      {"self_attn", "attn"},                {"mlp", "mlp"},
      {"attention_norm", "attn_in"},        {"ffn_norm", "mlp_in"},
      {"attention", "attn"},                {"feed_forward", "mlp"},
      {"attention.snq.norm", "q"},          {"attention.snk.norm", "k"},
      {"attention.snv.norm", "v"},          {"attention.sno.norm", "attn_out"},
      {"feed_forward.sn1.norm", "gate"},    {"feed_forward.sn3.norm", "up"},
      {"feed_forward.sn2.norm", "mlp_out"}, {"attention.q_norm", "q"},
      {"attention.k_norm", "k"}};
  return *names;
}

// The probe's name of a golden array, or nothing for arrays that are not intermediate results.
std::string ProbeName(const std::string& array) {
  if (array == "hidden.embed") return "embed";
  if (array.rfind("hidden.", 0) == 0 || array == "norm") return array;
  if (array.rfind("layers.", 0) != 0) return "";
  const size_t dot = array.find('.', 7);
  const auto site = SiteOfModule().find(array.substr(dot + 1));
  EXPECT_NE(site, SiteOfModule().end()) << array;
  return array.substr(0, dot + 1) + site->second;
}

// Folded gammas are missing from these outputs by design.
bool ChangesWhenFolded(const std::string& probe) {
  for (const char* end : {".attn_in", ".mlp_in", ".q", ".k", ".v", ".up"}) {
    const std::string suffix(end);
    if (probe.size() > suffix.size() &&
        probe.compare(probe.size() - suffix.size(), suffix.size(), suffix) == 0) {
      return true;
    }
  }
  return probe == "norm";
}

std::vector<size_t> OneByOne(size_t tokens) { return std::vector<size_t>(tokens, 1); }

class GoldenTest : public testing::TestWithParam<std::string> {};

void CheckIntermediates(const GoldenCase& golden, const Seen& seen, bool folded) {
  int compared = 0;
  for (const auto& [name, entry] : golden.arrays->entries()) {
    const std::string probe = ProbeName(name);
    if (probe.empty() || (folded && ChangesWhenFolded(probe))) continue;
    ASSERT_EQ(seen.count(probe), 1u) << name << " has no probe " << probe;
    const at::Tensor expected = golden.Array(name);
    const double scale = std::max(1.0, expected.abs().max().item<double>());
    EXPECT_LE(MaxAbsDifference(seen.at(probe), expected), kHiddenTolerance * scale) << name;
    ++compared;
  }
  EXPECT_GE(compared, golden.Has("hidden.0") ? 3 : 0);
}

TEST_P(GoldenTest, LogitsAndEveryLayerMatch) {
  const GoldenCase golden = OpenGolden(GetParam());
  if (golden.bfloat16) GTEST_SKIP() << "see Bfloat16StaysWithinItsNoise";
  for (Fold fold : {Fold::kOff, Fold::kOn}) {
    SCOPED_TRACE(fold == Fold::kOn ? "folded" : "not folded");
    LoadOptions options;
    options.fold = fold;
    const auto lm = Load(GetParam(), options);
    ASSERT_NE(lm, nullptr);
    EXPECT_EQ(lm->norms().folded.empty(), fold == Fold::kOff || lm->norms().norm_type == "np_layernorm");
    Seen seen;
    const auto rows = golden.Rows();
    SequenceRunner runner(*lm, static_cast<int64_t>(rows.size()), 16);
    const at::Tensor logits = runner.Feed(rows, &seen);
    CheckIntermediates(golden, seen, fold == Fold::kOn);
    EXPECT_LE(MaxAbsDifference(logits, golden.Array("logits")),
              LogitsTolerance(GetParam(), golden.Array("logits")));
    if (golden.Has("logits_folded")) {
      EXPECT_LE(MaxAbsDifference(logits, golden.Array("logits_folded")), kLogitsTolerance);
    }
  }
}

TEST_P(GoldenTest, GreedyDecodingMatches) {
  const GoldenCase golden = OpenGolden(GetParam());
  if (golden.bfloat16) GTEST_SKIP() << "see Bfloat16StaysWithinItsNoise";
  // The authors' decode path leaves the calibration out; ours is compared with their full forward.
  if (BaseName(GetParam()) == "bhyt_calibration") GTEST_SKIP() << "see CalibrationAppliesInDecode";
  const auto lm = Load(GetParam(), {});
  ASSERT_NE(lm, nullptr);
  SequenceRunner runner(*lm, 1, static_cast<int64_t>(golden.prompt.size() + golden.generated.size()));
  at::Tensor logits = runner.Feed({golden.prompt});
  for (size_t step = 0; step < golden.generated.size(); ++step) {
    const at::Tensor row = logits[logits.size(0) - 1];
    const int32_t next = static_cast<int32_t>(row.argmax().item<int64_t>());
    ASSERT_EQ(next, golden.generated[step]) << "step " << step;
    EXPECT_NEAR(LogProb(row, next), golden.logprobs[step], kLogprobTolerance) << "step " << step;
    logits = runner.Feed({{next}});
  }
}

TEST_P(GoldenTest, PrefillChunksDoNotChangeABit) {
  const GoldenCase golden = OpenGolden(GetParam());
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LoadOptions options;
    options.dtype = dtype;
    const auto lm = Load(GetParam(), options);
    ASSERT_NE(lm, nullptr);
    std::vector<int32_t> tokens = golden.prompt;
    tokens.insert(tokens.end(), golden.generated.begin(), golden.generated.end());
    const at::Tensor whole = LogitsInChunks(*lm, tokens, {tokens.size()});
    EXPECT_TRUE(whole.isfinite().all().item<bool>());
    EXPECT_TRUE(whole.equal(LogitsInChunks(*lm, tokens, OneByOne(tokens.size()))));
    EXPECT_TRUE(whole.equal(LogitsInChunks(*lm, tokens, {3, 17, 1, tokens.size() - 21})));
    // Beside a neighbour, with the neighbour first.
    SequenceRunner runner(*lm, 2, static_cast<int64_t>(tokens.size()));
    const std::vector<int32_t> neighbour(tokens.begin(), tokens.begin() + 5);
    EXPECT_TRUE(whole.equal(
        runner.Feed({neighbour, tokens}).slice(0, static_cast<int64_t>(neighbour.size()))));
  }
}

// The tolerance of the README: the reference's own paths differ by up to 0.1 in bfloat16.
void CheckBf16(const at::Tensor& logits, const at::Tensor& expected) {
  EXPECT_LE(MaxAbsDifference(logits, expected), kBf16Max);
  const at::Tensor mean =
      (logits.reshape(-1) - expected.to(at::kFloat).reshape(-1)).abs().mean();
  EXPECT_LE(mean.item<double>(), kBf16Mean);
}

TEST_P(GoldenTest, Bfloat16StaysWithinItsNoise) {
  const GoldenCase golden = OpenGolden(GetParam());
  if (!golden.bfloat16) GTEST_SKIP() << "a float32 case";
  LoadOptions options;
  options.dtype = at::kBFloat16;
  const auto lm = Load(GetParam(), options);
  ASSERT_NE(lm, nullptr);
  SequenceRunner rows(*lm, 2, 16);
  CheckBf16(rows.Feed(golden.Rows()), golden.Array("logits"));
  std::vector<int32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.generated.begin(), golden.generated.end());
  const at::Tensor logits = LogitsInChunks(*lm, tokens, OneByOne(tokens.size()));
  double total = 0.0;
  for (size_t step = 0; step < golden.generated.size(); ++step) {
    const at::Tensor row = logits[static_cast<int64_t>(golden.prompt.size() + step) - 1];
    const double d = std::abs(LogProb(row, golden.generated[step]) - golden.logprobs[step]);
    EXPECT_LE(d, kBf16Max) << "step " << step;
    total += d;
    if (golden.margins[step] >= 0.25) {
      EXPECT_EQ(row.argmax().item<int64_t>(), golden.generated[step]) << "step " << step;
    }
  }
  EXPECT_LE(total / static_cast<double>(golden.generated.size()), kBf16Mean);
}

// bfloat16 weights under float32 activations: exact but for c_attn, which the reference rounds to
// bfloat16 there.
TEST_P(GoldenTest, Bfloat16WeightsInFloat32Arithmetic) {
  const GoldenCase golden = OpenGolden(GetParam());
  if (!golden.bfloat16) GTEST_SKIP() << "a float32 case";
  const auto lm = Load(GetParam(), {});
  ASSERT_NE(lm, nullptr);
  EXPECT_TRUE(lm->norms().folded.empty());
  const bool bhyt = lm->norms().norm_type == "bhyt";
  SequenceRunner runner(*lm, 2, 16);
  EXPECT_LE(MaxAbsDifference(runner.Feed(golden.Rows()), golden.Array("logits_fp32_compute")),
            bhyt ? 2e-2 : kLogitsTolerance);
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = BaseName(info.param);
  std::replace_if(name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(GoldenDirectories()), TestName);

TEST(GoldenSuite, HasTheAuthorsCases) { EXPECT_GE(GoldenDirectories().size(), 41u); }

}  // namespace
}  // namespace normserve::model
