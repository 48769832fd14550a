// SPDX-License-Identifier: Apache-2.0
// The demo models' tokenizers against the ids that were recorded with the models.
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace normserve::text {
namespace {

class DemoTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = std::string("../models/demo/") + GetParam();
    auto loaded = LoadTokenizer(folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = std::move(*loaded);
    ASSERT_NE(tokenizer_, nullptr);
    std::ifstream file(folder + "/expected.json");
    expected_ = nlohmann::json::parse(file);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json expected_;
};

TEST_P(DemoTokenizer, EncodesEveryRecordedPrompt) {
  ASSERT_FALSE(expected_["greedy"].empty());
  for (const auto& item : expected_["greedy"]) {
    const auto ids = tokenizer_->EncodePrompt(item["prompt"].get<std::string>(), std::nullopt);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["prompt_ids"].get<std::vector<uint32_t>>());
  }
}

TEST_P(DemoTokenizer, StreamsTheRecordedContinuation) {
  for (const auto& item : expected_["greedy"]) {
    const auto ids = item["generated_ids"].get<std::vector<uint32_t>>();
    Detokenizer detokenizer(*tokenizer_, true);
    std::string joined;
    for (uint32_t id : ids) joined += detokenizer.Append(id);
    joined += detokenizer.Flush();
    EXPECT_EQ(joined, *tokenizer_->Decode(ids, true));
    EXPECT_FALSE(joined.empty());
  }
}

TEST_P(DemoTokenizer, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->kind(), "tokenizer.json");
  EXPECT_EQ(tokenizer_->vocab_size(), 2048u);
  EXPECT_EQ(tokenizer_->bos_id(), 0u);
  EXPECT_EQ(tokenizer_->bos_text(), "<|bos|>");
  EXPECT_EQ(tokenizer_->eos_ids(), std::vector<uint32_t>{1});
  EXPECT_TRUE(tokenizer_->IsSpecial(1));
  EXPECT_FALSE(tokenizer_->IsSpecial(2));
}

// vllm PR#27515: a prompt that already begins with the BOS text got a second BOS.
TEST_P(DemoTokenizer, NoDoubleBos) {
  const auto with_text = tokenizer_->EncodePrompt("<|bos|>In the beginning", std::nullopt);
  const auto plain = tokenizer_->EncodePrompt("In the beginning", std::nullopt);
  EXPECT_EQ(*with_text, *plain);
  const auto both = tokenizer_->EncodePrompt("<|bos|>In", true);
  EXPECT_EQ((*both)[0], 0u);
  EXPECT_EQ((*both)[1], 0u);
  EXPECT_NE((*tokenizer_->EncodePrompt("In", false))[0], 0u);
}

TEST_P(DemoTokenizer, RefusesWhatIsNotUtf8OrNotAnId) {
  EXPECT_EQ(tokenizer_->Encode("a\xFF", false).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer_->Decode({2048}, true).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, DemoTokenizer, testing::Values("bhyt-kjv", "simplegpt-kjv"),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

}  // namespace
}  // namespace normserve::text
