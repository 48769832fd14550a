// SPDX-License-Identifier: Apache-2.0
// What ends an answer and what of its text is sent: faults that other servers have had, each named
// after what it guards.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/harness.h"

namespace normserve::engine {
namespace {

constexpr uint32_t kEos = text::FakeTokenizer::kEos;
constexpr uint32_t kExtra = text::FakeTokenizer::kFirstExtra;

// A1: "DEFGHIJ" is spelt over several tokens, and no piece of it may be sent.
TEST(EngineStopRegressionTest, StopStringNeverLeaksIntoTheStream) {
  const std::vector<std::string> pieces = {"ABC", "DEF", "G", "HI", "JKL", "DEX"};
  for (bool include : {false, true}) {
    Harness harness(
        Scripted(1, {kExtra, kExtra + 5, kExtra, kExtra + 1, kExtra + 2, kExtra + 3, kExtra + 4}),
        {}, nullptr, pieces);
    Request request = Prompt({1}, 50);
    request.output.text = true;
    request.stop.stop_strings = {"never", "DEFGHIJ"};
    request.stop.include_stop_string = include;
    const Transcript t = harness.Run(request);
    EXPECT_EQ(t.text, include ? "ABCDEXABCDEFGHIJ" : "ABCDEXABC");
    EXPECT_EQ(t.finish_reason, FinishReason::kStopString);
    EXPECT_EQ(t.stop_match, "DEFGHIJ");
    EXPECT_EQ(t.tokens.size(), 7u);  // ids are not held back
    if (!include) {
      for (const std::string& text : t.texts) EXPECT_EQ(text.find("DEFG"), std::string::npos);
    }
  }
}

TEST(EngineStopRegressionTest, HeldTextIsFlushedWhenGenerationEndsOtherwise) {
  Harness harness(Scripted(1, {'D', 'E', 'F', 'G', kEos}));
  Request request = Prompt({1}, 3);
  request.output.text = true;
  request.stop.stop_strings = {"DEFGHIJ"};
  EXPECT_EQ(harness.Run(request).text, "DEF");  // max_new_tokens
  request.stop.max_new_tokens = 50;
  request.stop.eos_token_ids = {kEos};
  EXPECT_EQ(harness.Run(request).text, "DEFG");
}

// A2: cut in mid-character, no delta is broken and the join equals the whole decode.
TEST(EngineStopRegressionTest, SplitCharactersAreJoined) {
  const std::string text = "a\xF0\x9F\x98\x80\xE4\xB8\xAD";
  std::vector<uint32_t> ids(text.begin(), text.end());
  for (uint32_t& id : ids) id &= 0xFF;
  const text::FakeTokenizer tokenizer;
  for (uint32_t length = 1; length <= ids.size(); ++length) {
    Harness harness(Scripted(1, ids));
    Request request = Prompt({1}, length);
    request.output.text = true;
    const Transcript t = harness.Run(request);
    EXPECT_EQ(t.text, *tokenizer.Decode(absl::MakeConstSpan(ids).subspan(0, length), true));
    for (const std::string& delta : t.texts) {
      EXPECT_EQ(text::FakeTokenizer::ToValidUtf8(delta), delta);
    }
  }
}

// A10: min_new_tokens counts generated tokens only and masks every end id, no other.
TEST(EngineStopRegressionTest, MinNewTokensCountsGeneratedTokensOnly) {
  Harness harness;
  Request request = Prompt(std::vector<uint32_t>(100, 1), 50);
  request.stop.eos_token_ids = {kEos, 40};
  request.stop.stop_token_ids = {41};
  request.stop.min_new_tokens = 10;
  request.sampling.logit_bias = {{kEos, 100.0f}, {40, 90.0f}, {41, 95.0f}};
  for (float temperature : {0.0f, 1.0f}) {
    request.sampling.temperature = temperature;
    const Transcript t = harness.Run(request);
    ASSERT_EQ(t.tokens.size(), 11u);
    for (int i = 0; i < 10; ++i) {
      EXPECT_NE(t.ids()[i], kEos);
      EXPECT_NE(t.ids()[i], 40u);
      EXPECT_NE(t.ids()[i], 41u);
    }
    EXPECT_EQ(t.ids()[10], kEos);
    EXPECT_EQ(t.finish_reason, FinishReason::kEos);
  }
}

TEST(EngineStopRegressionTest, IgnoreEosMasksNothing) {
  Harness harness;
  Request request = Prompt({1}, 12);
  request.sampling.logit_bias = {{257, 100.0f}};  // the last id of the vocabulary, EOS too
  const Transcript t = harness.Run(request);      // eos_token_ids is empty
  EXPECT_EQ(t.ids(), std::vector<uint32_t>(12, 257));
  EXPECT_EQ(t.finish_reason, FinishReason::kMaxNewTokens);
  // An EOS id beyond the model's vocabulary masks nothing either.
  request.stop.eos_token_ids = {0xFFFFFFFFu, 300};
  request.stop.min_new_tokens = 12;
  EXPECT_EQ(harness.Run(request).ids(), std::vector<uint32_t>(12, 257));
}

TEST(EngineStopRegressionTest, StopStringsWaitForMinNewTokens) {
  Harness harness(Scripted(1, {'a', 'b', 'a', 'b', 'a', 'b', 'c'}));
  Request request = Prompt({1}, 20);
  request.output.text = true;
  request.stop.stop_strings = {"ab"};
  request.stop.min_new_tokens = 4;
  const Transcript t = harness.Run(request);
  EXPECT_EQ(t.text, "ab");
  EXPECT_EQ(t.tokens.size(), 4u);
}

}  // namespace
}  // namespace normserve::engine
