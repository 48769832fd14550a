// SPDX-License-Identifier: Apache-2.0
// What is refused at the door: faults that other servers have had, each named after what it guards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/harness.h"

namespace normserve::engine {
namespace {

using ::testing::HasSubstr;

// A5: what can never fit is refused and blocks nobody.
TEST(EngineLimitsRegressionTest, PromptBeyondThePoolIsRefusedAtTheDoor) {
  FakeRunnerOptions runner;
  runner.info.block_size = 16;
  runner.info.blocks = 16;
  runner.info.max_context_tokens = 4096;
  Harness harness(runner);
  const auto refused = harness.Submit(Prompt(std::vector<uint32_t>(300, 1), 5));
  EXPECT_EQ(refused.handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.handle.status().message()),
              HasSubstr("256 tokens (16 blocks of 16); allowed: 1 to 255"));
  EXPECT_TRUE(harness.Run(Prompt({1, 2, 3, 4, 5}, 5)).status.ok());
  // One that fits but cannot grow, with a neighbour that proceeds.
  auto large = harness.Submit(Prompt(std::vector<uint32_t>(250, 1), 50));
  auto small = harness.Submit(Prompt({1, 2}, 5));
  EXPECT_EQ(large.outbox->Wait().finish_reason, FinishReason::kContextLimit);
  EXPECT_EQ(large.outbox->Wait().usage.completion_tokens, 6u);
  EXPECT_EQ(small.outbox->Wait().finish_reason, FinishReason::kMaxNewTokens);
  EXPECT_EQ(harness.counts().of(Terminal::kInvalid), 1u);
  harness.ExpectIdle();
}

TEST(EngineLimitsRegressionTest, PromptBeyondTheContextIsRefusedAtTheDoor) {
  Harness harness;
  const auto refused = harness.Submit(Prompt(std::vector<uint32_t>(256, 1), 1));
  EXPECT_EQ(refused.handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.handle.status().message()),
              HasSubstr("max_context_tokens is 256; allowed: 1 to 255"));
  EXPECT_EQ(harness.Run(Prompt(std::vector<uint32_t>(255, 1), 9)).tokens.size(), 1u);
  EXPECT_EQ(harness.Run(ScoreFrom(std::vector<uint32_t>(256, 1), 255)).tokens.size(), 1u);
  const auto unscored = harness.Submit(ScoreFrom(std::vector<uint32_t>(257, 1), 255));
  EXPECT_THAT(std::string(unscored.handle.status().message()), HasSubstr("; allowed: 1 to 256"));
}

// A6: the queue is bounded; the overflow is refused at once and the accepted ones finish.
TEST(EngineLimitsRegressionTest, WaitingQueueIsBounded) {
  Gate gate;
  EngineOptions options;
  options.max_running = 1;
  options.max_waiting = 4;
  Harness harness(Gated(gate), options);
  auto first = harness.Submit(Prompt({9}, 2));
  gate.AwaitArrival(1);  // runs, so it no longer counts as waiting
  std::vector<Harness::Call> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(harness.Submit(Prompt({1, 2}, 3)));
  int accepted = 0;
  for (auto& call : calls) {
    if (call.handle.ok()) {
      ++accepted;
      continue;
    }
    EXPECT_EQ(call.handle.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(call.handle.status().message()), HasSubstr("max_waiting is 4"));
    EXPECT_TRUE(call.outbox->Now().texts.empty());
  }
  EXPECT_EQ(accepted, 4);
  gate.Open();
  for (auto& call : calls) {
    if (call.handle.ok()) {
      EXPECT_EQ(call.outbox->Wait().tokens.size(), 3u);
    }
  }
  EXPECT_EQ(harness.counts().of(Terminal::kRejected), 46u);
  EXPECT_TRUE(harness.Run(Prompt({1}, 1)).status.ok());
  harness.ExpectIdle();
}

TEST(EngineLimitsRegressionTest, WaitingTokensAreBounded) {
  Gate gate;
  EngineOptions options;
  options.max_running = 1;
  options.max_waiting_tokens = 10;
  Harness harness(Gated(gate), options);
  auto first = harness.Submit(Prompt({9}, 2));
  gate.AwaitArrival(1);
  // Larger than the bound by itself: may wait alone, so that a retry can succeed.
  auto large = harness.Submit(Prompt(std::vector<uint32_t>(12, 1), 1));
  EXPECT_TRUE(large.handle.ok());
  auto refused = harness.Submit(Prompt({1}, 1));
  EXPECT_EQ(refused.handle.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.handle.status().message()),
              HasSubstr("max_waiting_tokens is 10"));
  gate.Open();
  large.outbox->Wait();
  EXPECT_TRUE(harness.Run(Prompt({1}, 1)).status.ok());
  harness.ExpectIdle();
}

// A9: an id outside the vocabulary never reaches the engine thread.
TEST(EngineLimitsRegressionTest, LogitBiasOutsideTheVocabularyIsRefused) {
  Harness harness;
  for (uint32_t id : {258u, 191222u, 0xFFFFFFFFu}) {
    Request request = Prompt({1}, 2);
    request.sampling.logit_bias = {{id, -100.0f}};
    const auto status = harness.Submit(request).handle.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("[0, 258)"));
    EXPECT_FALSE(harness.Submit(Prompt({id}, 1)).handle.ok());
  }
  EXPECT_TRUE(harness.Run(Prompt({1}, 2)).status.ok());
}

}  // namespace
}  // namespace normserve::engine
