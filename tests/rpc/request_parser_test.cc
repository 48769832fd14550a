// SPDX-License-Identifier: Apache-2.0
// Every limit of the proto comments, and what absent fields become.
#include "rpc/request_parser.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "engine/harness.h"

namespace normserve::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RequestParserTest : public ::testing::Test {
 protected:
  RequestParserTest() {
    model_.card.name = "m";
    model_.engine = &harness_.engine();
    model_.tokenizer = &tokenizer_;
    model_.defaults.eos_token_ids = {257};
  }

  absl::StatusOr<engine::Request> Parse(const v1::GenerateRequest& message) const {
    return ParseGenerate(message, model_);
  }
  absl::StatusOr<engine::Request> Parse(const std::string& text) const {
    v1::GenerateRequest message;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
    return Parse(message);
  }

  text::FakeTokenizer tokenizer_;
  engine::Harness harness_;  // vocabulary 258
  ServedModel model_;
};

TEST_F(RequestParserTest, EachBadFieldIsNamedWithItsValueAndRange) {
  const struct {
    const char* message;
    const char* field;
    const char* value;
    const char* allowed;
  } cases[] = {
      {"token_ids { ids: 258 }", "token_ids.ids[0]", "258", "0 to 257"},
      {"sampling { temperature: -0.5 }", "sampling.temperature", "-0.5", "0 or more"},
      {"sampling { temperature: nan }", "sampling.temperature", "nan", "finite"},
      {"sampling { temperature: inf }", "sampling.temperature", "inf", "finite"},
      {"sampling { top_p: 0 }", "sampling.top_p", "0", "above 0 to 1"},
      {"sampling { top_p: 1.5 }", "sampling.top_p", "1.5", "above 0 to 1"},
      {"sampling { top_p: 1.0000001 }", "sampling.top_p", "1.0000001", "above 0 to 1"},
      {"sampling { temperature: -1e-30 }", "sampling.temperature", "-1e-30", "0 or more"},
      {"sampling { top_p: nan }", "sampling.top_p", "nan", "above 0 to 1"},
      {"sampling { min_p: -0.1 }", "sampling.min_p", "-0.1", "0 to 1"},
      {"sampling { min_p: 1.1 }", "sampling.min_p", "1.1", "0 to 1"},
      {"sampling { repetition_penalty: 0 }", "sampling.repetition_penalty", "0", "above 0 to 10"},
      {"sampling { repetition_penalty: 11 }", "sampling.repetition_penalty", "11", "above 0 to 10"},
      {"sampling { presence_penalty: 2.5 }", "sampling.presence_penalty", "2.5", "-2 to 2"},
      {"sampling { frequency_penalty: -3 }", "sampling.frequency_penalty", "-3", "-2 to 2"},
      {"sampling { logit_bias { key: 258 value: 1 } }", "sampling.logit_bias", "258", "0 to 257"},
      {"sampling { logit_bias { key: 4294967295 value: 1 } }", "sampling.logit_bias", "4294967295",
       "0 to 257"},
      {"sampling { logit_bias { key: 3 value: nan } }", "sampling.logit_bias[3]", "nan",
       "-100 to 100"},
      {"sampling { logit_bias { key: 3 value: -inf } }", "sampling.logit_bias[3]", "-inf",
       "-100 to 100"},
      {"sampling { logit_bias { key: 3 value: 100.5 } }", "sampling.logit_bias[3]", "100.5",
       "-100 to 100"},
      {"stop { max_new_tokens: 0 }", "stop.max_new_tokens", "0", "1 or more"},
      {"stop { max_new_tokens: 3 min_new_tokens: 4 }", "stop.min_new_tokens", "4", "0 to"},
      {"stop { stop_strings: '' }", "stop.stop_strings[0]", "0 bytes", "1 to 256"},
      {"stop { stop_token_ids: [1, 258] }", "stop.stop_token_ids[1]", "258", "0 to 257"},
      {"output { top_logprobs: 259 }", "output.top_logprobs", "259", "0 to 258"},
      {"truncate_prompt_tokens: 0", "truncate_prompt_tokens", "0", "1 or more"},
      {"priority: 101", "priority", "101", "-100 to 100"},
      {"priority: -101", "priority", "-101", "-100 to 100"},
  };
  for (const auto& c : cases) {
    std::string message = c.message;
    if (message.find("token_ids {") != 0) message += " text: 'a'";
    const absl::StatusOr<engine::Request> request = Parse(message);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << message;
    const std::string said(request.status().message());
    EXPECT_THAT(said, HasSubstr(c.field)) << message;
    EXPECT_THAT(said, HasSubstr(c.value)) << message;
    EXPECT_THAT(said, HasSubstr(c.allowed)) << message;
  }
}

TEST_F(RequestParserTest, ListsAreBounded) {
  v1::GenerateRequest message;
  message.set_text("a");
  for (int i = 0; i < 17; ++i) message.mutable_stop()->add_stop_strings("x");
  EXPECT_THAT(std::string(Parse(message).status().message()), HasSubstr("17 strings"));
  message.mutable_stop()->clear_stop_strings();
  message.mutable_stop()->add_stop_strings(std::string(257, 'x'));
  EXPECT_THAT(std::string(Parse(message).status().message()), HasSubstr("257 bytes"));
  message.mutable_stop()->set_stop_strings(0, std::string(256, 'x'));
  EXPECT_TRUE(Parse(message).ok());
  for (int i = 0; i < 65; ++i) message.mutable_stop()->add_stop_token_ids(1);
  EXPECT_THAT(std::string(Parse(message).status().message()), HasSubstr("65 ids"));
  message.mutable_stop()->clear_stop_token_ids();
  for (uint32_t i = 0; i < 1025; ++i) (*message.mutable_sampling()->mutable_logit_bias())[i] = 1;
  EXPECT_THAT(std::string(Parse(message).status().message()), HasSubstr("1025 entries"));
}

TEST_F(RequestParserTest, APromptIsRequired) {
  EXPECT_THAT(std::string(Parse("").status().message()), HasSubstr("prompt: absent"));
  EXPECT_THAT(std::string(Parse("token_ids {}").status().message()), HasSubstr("no tokens"));
  EXPECT_THAT(std::string(Parse("text: '' add_special_tokens: false").status().message()),
              HasSubstr("no tokens"));
  EXPECT_THAT(Parse("text: ''")->prompt, ElementsAre(256));  // BOS
}

TEST_F(RequestParserTest, TextWithoutATokenizerNamesWhatIsMissing) {
  model_.tokenizer = nullptr;
  for (const char* message : {"text: 'a'", "token_ids { ids: 1 } stop { stop_strings: 'a' }"}) {
    const absl::Status status = Parse(message).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no tokenizer")) << message;
  }
  const absl::StatusOr<engine::Request> ids = Parse("token_ids { ids: 1 }");
  ASSERT_TRUE(ids.ok());
  EXPECT_FALSE(ids->output.text);
}

TEST_F(RequestParserTest, AbsentFieldsAreGreedyWithoutAGenerationConfig) {
  const absl::StatusOr<engine::Request> request = Parse("text: 'a'");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_k, 0u);
  EXPECT_EQ(request->sampling.top_p, 1);
  EXPECT_EQ(request->sampling.repetition_penalty, 1);
  EXPECT_EQ(request->stop.max_new_tokens, 256u);
  EXPECT_THAT(request->stop.eos_token_ids, ElementsAre(257));
  EXPECT_TRUE(request->output.text);
  EXPECT_TRUE(request->output.skip_special_tokens);
  EXPECT_FALSE(request->output.logprobs);
}

TEST_F(RequestParserTest, AbsentFieldsTakeTheGenerationConfig) {
  model_.defaults.do_sample = true;
  model_.defaults.temperature = 0.6f;
  model_.defaults.top_k = 40;
  model_.defaults.top_p = 0.9f;
  model_.defaults.min_p = 0.05f;
  model_.defaults.repetition_penalty = 1.1f;
  model_.defaults.max_new_tokens = 33;
  const absl::StatusOr<engine::Request> request = Parse("text: 'a'");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling.temperature, 0.6f);
  EXPECT_EQ(request->sampling.top_k, 40u);
  EXPECT_EQ(request->sampling.top_p, 0.9f);
  EXPECT_EQ(request->sampling.min_p, 0.05f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request->stop.max_new_tokens, 33u);
  // A given value wins, zero included: presence is not the value.
  const absl::StatusOr<engine::Request> given =
      Parse("text: 'a' sampling { temperature: 0 top_k: 0 top_p: 1 min_p: 0 }");
  EXPECT_EQ(given->sampling.temperature, 0);
  EXPECT_EQ(given->sampling.top_k, 0u);
  EXPECT_EQ(given->sampling.top_p, 1);
  EXPECT_EQ(given->sampling.min_p, 0);
}

TEST_F(RequestParserTest, ATemperatureWithoutDoSampleIsNotTheDefault) {
  model_.defaults.temperature = 0.6f;
  EXPECT_EQ(Parse("text: 'a'")->sampling.temperature, 0);
  EXPECT_EQ(Parse("text: 'a' sampling { temperature: 0.7 }")->sampling.temperature, 0.7f);
}

TEST_F(RequestParserTest, MaxLengthCountsThePrompt) {
  model_.defaults.max_length = 20;
  EXPECT_EQ(Parse("token_ids { ids: [1, 2, 3] }")->stop.max_new_tokens, 17u);
  model_.defaults.max_length = 3;  // leaves nothing
  EXPECT_EQ(Parse("token_ids { ids: [1, 2, 3] }")->stop.max_new_tokens, 256u);
}

TEST_F(RequestParserTest, AMinimumAboveALimitThatTheCallerDidNotSetSaysWhoseThatIs) {
  const auto said = [&](const char* stop) {
    return std::string(Parse(std::string("text: 'a' stop { ") + stop + " }").status().message());
  };
  EXPECT_EQ(said("min_new_tokens: 600"),
            "stop.min_new_tokens: 600; allowed: 0 to max_new_tokens (256, the server's default)");
  EXPECT_THAT(said("min_new_tokens: 600 max_new_tokens: 256"), HasSubstr("max_new_tokens (256)"));
  model_.defaults.max_length = 20;
  EXPECT_THAT(said("min_new_tokens: 600"),
              HasSubstr("(18, by the model's generation_config.json)"));
  model_.defaults.max_new_tokens = 33;
  EXPECT_THAT(said("min_new_tokens: 600"),
              HasSubstr("(33, by the model's generation_config.json)"));
}

TEST_F(RequestParserTest, TruncationKeepsTheLastTokens) {
  EXPECT_THAT(Parse("token_ids { ids: [1, 2, 3, 4] } truncate_prompt_tokens: 3")->prompt,
              ElementsAre(2, 3, 4));
  EXPECT_THAT(Parse("token_ids { ids: [1, 2] } truncate_prompt_tokens: 3")->prompt,
              ElementsAre(1, 2));
}

TEST_F(RequestParserTest, SeedsAreKeptOrDrawn) {
  EXPECT_EQ(Parse("text: 'a' sampling { seed: 0 }")->sampling.seed, 0u);
  EXPECT_NE(Parse("text: 'a'")->sampling.seed, Parse("text: 'a'")->sampling.seed);
}

TEST_F(RequestParserTest, OptionsReachTheEngine) {
  const absl::StatusOr<engine::Request> request = Parse(
      "text: 'a' priority: -7 stop { ignore_eos: true stop_token_ids: 5 include_stop_string: true "
      "stop_strings: 'end' min_new_tokens: 2 } output { top_logprobs: 3 skip_special_tokens: false "
      "omit_text: true } sampling { logit_bias { key: 9 value: 1 } logit_bias { key: 2 value: -1 } "
      "}");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->priority, -7);
  EXPECT_TRUE(request->stop.eos_token_ids.empty());
  EXPECT_THAT(request->stop.stop_token_ids, ElementsAre(5));
  EXPECT_THAT(request->stop.stop_strings, ElementsAre("end"));
  EXPECT_TRUE(request->stop.include_stop_string);
  EXPECT_EQ(request->stop.min_new_tokens, 2u);
  EXPECT_TRUE(request->output.logprobs);
  EXPECT_EQ(request->output.top_logprobs, 3u);
  EXPECT_FALSE(request->output.skip_special_tokens);
  EXPECT_FALSE(request->output.text);
  EXPECT_THAT(request->sampling.logit_bias,
              ElementsAre(std::make_pair(2u, -1.0f), std::make_pair(9u, 1.0f)));
}

TEST_F(RequestParserTest, ScoreItemsSayWhatIsContext) {
  v1::ScoreRequest message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "items { text_pair { context: 'ab' continuation: 'c' } }"
      "items { token_pair { context { ids: [1, 2] } continuation { ids: 3 } } }"
      "items { token_pair { continuation { ids: [3, 4] } } }"
      "items { text: 'ab' }"
      "items { token_ids { ids: 7 } } top_logprobs: 2 priority: 3",
      &message));
  const absl::StatusOr<std::vector<ScoreWork>> work = ParseScore(message, model_);
  ASSERT_TRUE(work.ok()) << work.status();
  ASSERT_EQ(work->size(), 5u);
  const auto expect = [&](size_t i, std::vector<uint32_t> prompt, uint32_t from,
                          uint32_t unscored) {
    EXPECT_EQ((*work)[i].request.prompt, prompt) << i;
    EXPECT_EQ((*work)[i].request.score_from, from) << i;
    EXPECT_EQ((*work)[i].unscored_tokens, unscored) << i;
    EXPECT_EQ((*work)[i].request.output.top_logprobs, 2u) << i;
    EXPECT_EQ((*work)[i].request.priority, 3) << i;
  };
  expect(0, {256, 'a', 'b', 'c'}, 3, 0);
  expect(1, {1, 2, 3}, 2, 0);
  expect(2, {3, 4}, 1, 1);
  expect(3, {256, 'a', 'b'}, 1, 1);
  expect(4, {7}, 1, 1);
}

TEST_F(RequestParserTest, BadScoreItemsAreNamed) {
  const struct {
    const char* message;
    const char* said;
  } cases[] = {
      {"", "items: 0 items; allowed: 1 to 1024"},
      {"items { text: 'a' } items {}", "items[1]: absent"},
      {"items { token_pair { context { ids: 1 } } }",
       "items[0].token_pair.continuation: has no tokens to score; allowed: 1 or more"},
      {"items { text_pair { context: 'a' } }",
       "items[0].text_pair.continuation: has no tokens to score"},
      {"items { text: '' } add_special_tokens: false", "items[0].text: has no tokens to score"},
      {"items { token_ids {} }", "items[0].token_ids: has no tokens to score"},
      {"items { token_ids { ids: [1, 999] } }", "items[0].token_ids.ids[1]: 999"},
      {"items { text: 'a' } top_logprobs: 259", "top_logprobs: 259"},
      {"items { text: 'a' } priority: 200", "priority: 200"},
  };
  for (const auto& c : cases) {
    v1::ScoreRequest message;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.message, &message));
    const absl::Status status = ParseScore(message, model_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.said));
  }
}

// gRPC aborts the process when an answer cannot be written, which protobuf cannot beyond 2 GiB.
TEST_F(RequestParserTest, AScoreCallsItemsTogetherStayBelowTheLargestAnswer) {
  v1::ScoreRequest message;
  message.set_top_logprobs(model_.engine->runner_info().vocab_size);
  for (int i = 0; i < 1024; ++i) {
    v1::TokenIds* ids = message.add_items()->mutable_token_ids();
    for (int t = 0; t < 256; ++t) ids->add_ids(1);
  }
  const absl::Status status = ParseScore(message, model_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("top_logprobs: "));
  message.mutable_items()->RemoveLast();
  message.set_top_logprobs(200);
  EXPECT_TRUE(ParseScore(message, model_).ok());
}

// Encoding takes a thread that other calls need: a text of many megabytes held up health checks.
TEST_F(RequestParserTest, ATextThatCannotFitIsRefusedBeforeItIsEncoded) {
  v1::GenerateRequest message;
  message.set_text(std::string((1 << 20) + 1, 'x'));
  const absl::Status status = ParseGenerate(message, model_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("text: 1048577 bytes; allowed"));
}

}  // namespace
}  // namespace normserve::rpc
