// SPDX-License-Identifier: Apache-2.0
// Tests of client/request_flags.h.
#include "client/request_flags.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normserve::client {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<v1::GenerateRequest> Parse(std::vector<std::string> arguments) {
  CLI::App app;
  RequestFlags flags;
  AddRequestFlags(&app, &flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  app.parse(arguments);
  v1::GenerateRequest request;
  const absl::Status status = ApplyRequestFlags(flags, &request);
  if (!status.ok()) return status;
  return request;
}

TEST(RequestFlags, AFlagThatIsNotGivenLeavesItsFieldAbsent) {
  const auto request = Parse({});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling().ByteSizeLong(), 0u);
  EXPECT_EQ(request->stop().ByteSizeLong(), 0u);
  EXPECT_EQ(request->output().ByteSizeLong(), 0u);
  EXPECT_FALSE(request->has_add_special_tokens());
  EXPECT_FALSE(request->has_priority());
}

TEST(RequestFlags, AZeroThatIsGivenIsSent) {
  const auto request = Parse({"--temperature", "0", "--seed", "0", "--top-k", "0"});
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->sampling().has_temperature());
  EXPECT_TRUE(request->sampling().has_seed());
  EXPECT_TRUE(request->sampling().has_top_k());
}

TEST(RequestFlags, EveryFlagReachesItsField) {
  const auto request = Parse({"--temperature",
                              "0.5",
                              "--top-k",
                              "4",
                              "--top-p",
                              "0.9",
                              "--min-p",
                              "0.1",
                              "--seed",
                              "7",
                              "--logit-bias",
                              "3=-1.5",
                              "--logit-bias",
                              "4=2",
                              "--repetition-penalty",
                              "1.5",
                              "--presence-penalty",
                              "-1",
                              "--frequency-penalty",
                              "0.25",
                              "-n",
                              "9",
                              "--min-new-tokens",
                              "2",
                              "--stop",
                              "a b",
                              "--stop",
                              "c",
                              "--stop-token-id",
                              "5",
                              "--ignore-eos",
                              "--include-stop-string",
                              "--logprobs",
                              "--top-logprobs",
                              "6",
                              "--keep-special-tokens",
                              "--omit-text",
                              "--no-add-special-tokens",
                              "--truncate-prompt-tokens",
                              "8",
                              "--priority",
                              "-3"});
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& sampling = request->sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 4u);
  EXPECT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.min_p(), 0.1f);
  EXPECT_EQ(sampling.seed(), 7u);
  EXPECT_EQ(sampling.logit_bias().at(3), -1.5f);
  EXPECT_EQ(sampling.logit_bias().at(4), 2.0f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.presence_penalty(), -1.0f);
  EXPECT_EQ(sampling.frequency_penalty(), 0.25f);
  EXPECT_EQ(request->stop().max_new_tokens(), 9u);
  EXPECT_EQ(request->stop().min_new_tokens(), 2u);
  EXPECT_THAT(request->stop().stop_strings(), ElementsAre("a b", "c"));
  EXPECT_THAT(request->stop().stop_token_ids(), ElementsAre(5u));
  EXPECT_TRUE(request->stop().ignore_eos());
  EXPECT_TRUE(request->stop().include_stop_string());
  EXPECT_TRUE(request->output().logprobs());
  EXPECT_EQ(request->output().top_logprobs(), 6u);
  EXPECT_TRUE(request->output().has_skip_special_tokens());
  EXPECT_FALSE(request->output().skip_special_tokens());
  EXPECT_TRUE(request->output().omit_text());
  EXPECT_TRUE(request->has_add_special_tokens());
  EXPECT_FALSE(request->add_special_tokens());
  EXPECT_EQ(request->truncate_prompt_tokens(), 8u);
  EXPECT_EQ(request->priority(), -3);
}

TEST(RequestFlags, ARepeatableFlagDoesNotSwallowThePromptAfterIt) {
  CLI::App app;
  RequestFlags flags;
  std::string prompt;
  app.add_option("prompt", prompt);
  AddRequestFlags(&app, &flags);
  app.parse(std::vector<std::string>{"the prompt", "x", "--stop"});  // last first
  EXPECT_EQ(prompt, "the prompt");
  EXPECT_THAT(flags.stop_strings, ElementsAre("x"));
}

TEST(RequestFlags, AFaultyLogitBiasIsAnError) { EXPECT_FALSE(Parse({"--logit-bias", "3:4"}).ok()); }

}  // namespace
}  // namespace normserve::client
