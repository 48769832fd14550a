// SPDX-License-Identifier: Apache-2.0
// Faults that other servers have had, each named after what it guards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "base/fake_clock.h"
#include "engine/harness.h"

namespace normserve::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kEos = text::FakeTokenizer::kEos;
constexpr uint32_t kExtra = text::FakeTokenizer::kFirstExtra;

// A1: "DEFGHIJ" is spelt over several tokens, and no piece of it may be sent.
TEST(EngineRegressionTest, StopStringNeverLeaksIntoTheStream) {
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

TEST(EngineRegressionTest, HeldTextIsFlushedWhenGenerationEndsOtherwise) {
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
TEST(EngineRegressionTest, SplitCharactersAreJoined) {
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

// A3: cancelled requests free their places within one step.
TEST(EngineRegressionTest, CancelFreesItsPlaceWithinOneStep) {
  Gate gate;
  EngineOptions options;
  options.max_running = 2;
  Harness harness(Gated(gate), options);
  auto a = harness.Submit(Prompt({1}, 250));
  auto b = harness.Submit(Prompt({2}, 250));
  auto c = harness.Submit(Prompt({3}, 3));
  gate.Let(3);
  gate.AwaitArrival(4);
  harness.engine().Cancel(*a.handle);
  harness.engine().Cancel(*b.handle);
  harness.engine().Cancel(*b.handle);
  gate.Let(1);           // the step that was under way
  gate.AwaitArrival(5);  // the next one
  EXPECT_EQ(a.outbox->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(b.outbox->Wait().status.code(), absl::StatusCode::kCancelled);
  const size_t tokens = a.outbox->Now().tokens.size();
  EXPECT_LE(tokens, 4u);
  gate.Open();
  EXPECT_EQ(c.outbox->Wait().tokens.size(), 3u);
  EXPECT_EQ(a.outbox->Now().tokens.size(), tokens);
  EXPECT_EQ(harness.counts().of(Terminal::kCancelled), 2u);
  harness.engine().Cancel(*c.handle);  // ended: no-op
  harness.ExpectIdle();
}

// A4: a thousand cancels at random moments leave nothing behind. The gate lets fewer steps run than
// the requests need, so that most are caught: queued, in prefill, in decode.
TEST(EngineRegressionTest, AThousandRandomCancelsLeaveNothingBehind) {
  EngineOptions options;
  options.max_running = 6;
  options.max_step_tokens = 8;
  Gate gate;
  FakeRunnerOptions runner = Gated(gate);
  runner.info.blocks = 24;
  Harness harness(runner, options);
  std::mt19937 random(4);
  std::vector<Harness::Call> calls;
  for (int i = 0; i < 1000; ++i) {
    std::vector<uint32_t> prompt(1 + random() % 20, 7);
    prompt[0] = random() % 3;
    calls.push_back(harness.Submit(Prompt(prompt, 1 + random() % 30)));
    ASSERT_TRUE(calls.back().handle.ok()) << calls.back().handle.status();
    gate.Let(random() % 3);
    harness.engine().Cancel(*calls[i - random() % std::min(i + 1, 8)].handle);
  }
  for (auto& call : calls) harness.engine().Cancel(*call.handle);
  gate.Open();
  for (auto& call : calls) EXPECT_EQ(call.outbox->Wait().after_end, 0);
  harness.ExpectIdle();
  const auto c = harness.counts();
  EXPECT_GT(c.of(Terminal::kCancelled), 500u);
  EXPECT_EQ(c.of(Terminal::kCancelled) + c.of(Terminal::kLength), 1000u);
  EXPECT_EQ(harness.Run(Prompt({1, 2, 3}, 5)).tokens.size(), 5u);
}

// A5: what can never fit is refused and blocks nobody.
TEST(EngineRegressionTest, PromptBeyondThePoolIsRefusedAtTheDoor) {
  FakeRunnerOptions runner;
  runner.info.block_size = 16;
  runner.info.blocks = 16;
  runner.info.max_context_tokens = 4096;
  Harness harness(runner);
  const auto refused = harness.Submit(Prompt(std::vector<uint32_t>(300, 1), 5));
  EXPECT_EQ(refused.handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.handle.status().message()), HasSubstr("256 tokens"));
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

TEST(EngineRegressionTest, PromptBeyondTheContextIsRefusedAtTheDoor) {
  Harness harness;
  const auto refused = harness.Submit(Prompt(std::vector<uint32_t>(256, 1), 1));
  EXPECT_EQ(refused.handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.handle.status().message()),
              HasSubstr("max_context_tokens is 256"));
  EXPECT_EQ(harness.Run(Prompt(std::vector<uint32_t>(255, 1), 9)).tokens.size(), 1u);
  EXPECT_EQ(harness.Run(ScoreFrom(std::vector<uint32_t>(256, 1), 255)).tokens.size(), 1u);
}

// A6: the queue is bounded; the overflow is refused at once and the accepted ones finish.
TEST(EngineRegressionTest, WaitingQueueIsBounded) {
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

TEST(EngineRegressionTest, WaitingTokensAreBounded) {
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

// A7: a seeded request depends on its own inputs alone.
TEST(EngineRegressionTest, SeededOutputIgnoresNeighbours) {
  const Request seeded = Seeded({5, 6, 7}, 16, 42);
  const std::vector<uint32_t> alone = Harness().Run(seeded).ids();
  for (int neighbours : {1, 7, 31}) {
    for (bool last : {false, true}) {
      FakeRunnerOptions runner;
      runner.info.blocks = 24;  // too few for all: some are preempted
      Gate gate;
      runner.before_step = Gated(gate).before_step;
      Harness harness(runner);
      std::vector<Harness::Call> others;
      Harness::Call call{absl::UnknownError(""), nullptr};
      if (!last) call = harness.Submit(seeded);
      for (int i = 0; i < neighbours; ++i) {
        others.push_back(harness.Submit(Seeded({5, 6, 7}, 30, 1000 + i)));
      }
      if (last) call = harness.Submit(seeded);
      gate.Open();
      EXPECT_EQ(call.outbox->Wait().ids(), alone);
      for (auto& other : others) other.outbox->Wait();
      harness.ExpectIdle();
    }
  }
}

// A8: a very small temperature or top_p tends to greedy.
TEST(EngineRegressionTest, TinyTemperatureAndTopPTendToGreedy) {
  Harness harness;
  const std::vector<uint32_t> greedy = harness.Run(Prompt({1, 2}, 20)).ids();
  for (float temperature : {0.0f, 1e-30f, 1e-8f, 1e-5f, 1e-4f}) {
    EXPECT_EQ(harness.Run(Seeded({1, 2}, 20, 3, temperature)).ids(), greedy) << temperature;
    Request request = Seeded({1, 2}, 20, 3, temperature);
    request.sampling.top_p = 0.5f;
    request.sampling.top_k = 3;
    EXPECT_EQ(harness.Run(request).ids(), greedy);
  }
  for (float top_p : {1e-6f, 1e-4f}) {
    Request request = Seeded({1, 2}, 20, 3, 1.0f);
    request.sampling.top_p = top_p;
    EXPECT_EQ(harness.Run(request).ids(), greedy) << top_p;
  }
  EXPECT_EQ(harness.counts().non_finite, 0u);
}

// A9: an id outside the vocabulary never reaches the engine thread.
TEST(EngineRegressionTest, LogitBiasOutsideTheVocabularyIsRefused) {
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

// A10: min_new_tokens counts generated tokens only and masks every end id, no other.
TEST(EngineRegressionTest, MinNewTokensCountsGeneratedTokensOnly) {
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

TEST(EngineRegressionTest, IgnoreEosMasksNothing) {
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

TEST(EngineRegressionTest, StopStringsWaitForMinNewTokens) {
  Harness harness(Scripted(1, {'a', 'b', 'a', 'b', 'a', 'b', 'c'}));
  Request request = Prompt({1}, 20);
  request.output.text = true;
  request.stop.stop_strings = {"ab"};
  request.stop.min_new_tokens = 4;
  const Transcript t = harness.Run(request);
  EXPECT_EQ(t.text, "ab");
  EXPECT_EQ(t.tokens.size(), 4u);
}

// A16: expired while queued: never run. Expired while running: stopped within a step.
TEST(EngineRegressionTest, DeadlineActsInTheQueueAndWithinOneStep) {
  Gate gate;
  base::FakeClock clock;
  EngineOptions options;
  options.max_running = 1;
  Harness harness(Gated(gate), options, &clock);
  Request slow = Prompt({1}, 200);
  slow.deadline = clock.Now() + absl::Seconds(10);
  auto running = harness.Submit(slow);
  Request queued = Prompt({2, 3, 4}, 5);
  queued.deadline = clock.Now() + absl::Milliseconds(50);
  auto waiting = harness.Submit(queued);
  gate.Let(2);
  gate.AwaitArrival(3);
  clock.Advance(absl::Seconds(1));
  gate.Let(1);
  EXPECT_EQ(waiting.outbox->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(waiting.outbox->Now().tokens.empty());
  gate.AwaitArrival(4);
  EXPECT_FALSE(running.outbox->Now().finished);
  clock.Advance(absl::Seconds(9));
  gate.Open();
  const Transcript t = running.outbox->Wait();
  EXPECT_EQ(t.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(t.tokens.size(), 4u);  // the step under way was the last
  const auto c = harness.counts();
  EXPECT_EQ(c.steps, 4u);
  EXPECT_EQ(c.prompt_computed, 1u);  // nothing was computed for the one that expired in the queue
  EXPECT_EQ(c.generated, 4u);
  EXPECT_EQ(c.of(Terminal::kDeadline), 2u);
  harness.ExpectIdle();
}

TEST(EngineRegressionTest, ExpiredBeforeSubmissionNeverRuns) {
  base::FakeClock clock;
  Harness harness({}, {}, &clock);
  Request request = Prompt({1}, 5);
  request.deadline = clock.Now();
  EXPECT_EQ(harness.Run(request).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness.counts().steps, 0u);
}

// A17: every request ends in exactly one terminal.
TEST(EngineRegressionTest, TerminalsSumToReceived) {
  Gate gate;
  base::FakeClock clock;
  EngineOptions options;
  options.max_waiting = 20;
  Harness harness(Gated(gate), options, &clock);
  auto first = harness.Submit(Prompt({1}, 1));
  gate.AwaitArrival(1);
  std::vector<Harness::Call> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(harness.Submit(Prompt({1, 2}, 3)));
  for (int i = 0; i < 5; ++i) {
    calls.push_back(harness.Submit(Prompt({1, 2}, 3)));
    harness.engine().Cancel(*calls.back().handle);
  }
  for (int i = 0; i < 3; ++i) {
    Request request = Prompt({1, 2}, 3);
    request.deadline = clock.Now();
    calls.push_back(harness.Submit(request));
  }
  calls.push_back(harness.Submit(ScoreFrom({1, 2, 3}, 1)));
  calls.push_back(harness.Submit(ScoreFrom({1}, 1)));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(harness.Submit(Prompt({1, 2}, 3)).handle.ok());
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(harness.Submit(Prompt({}, 3)).handle.ok());
  auto c = harness.counts();
  EXPECT_EQ(c.received, 25u);
  EXPECT_EQ(c.ended_total(), 4u);
  gate.Open();
  for (auto& call : calls) call.outbox->Wait();
  c = harness.counts();
  EXPECT_EQ(c.of(Terminal::kLength), 11u);
  EXPECT_EQ(c.of(Terminal::kCancelled), 5u);
  EXPECT_EQ(c.of(Terminal::kDeadline), 3u);
  EXPECT_EQ(c.of(Terminal::kScored), 2u);
  EXPECT_EQ(c.of(Terminal::kRejected), 2u);
  EXPECT_EQ(c.of(Terminal::kInvalid), 2u);
  harness.ExpectIdle();
}

// A19: NaN ends its own request, is counted, poisons no cache and touches no neighbour.
TEST(EngineRegressionTest, NanEndsItsRequestAloneAndLeavesNoReusableBlocks) {
  constexpr uint32_t kPoison = 200;
  FakeRunnerOptions runner;
  runner.poison = kPoison;
  runner.edit = [](const std::vector<uint32_t>&, std::vector<float>& logits) {
    logits[kPoison] = -100.0f;
  };
  Gate gate;
  runner.before_step = Gated(gate).before_step;
  Harness harness(runner);
  const std::vector<uint32_t> clean = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<uint32_t> bad = {1, 2, 3, kPoison, 5, 6, 7, 8, 9};
  auto a = harness.Submit(Prompt(clean, 10));
  auto b = harness.Submit(Prompt(bad, 10));
  gate.Open();
  EXPECT_EQ(b.outbox->Wait().status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(b.outbox->Now().tokens.empty());
  runner.before_step = nullptr;
  EXPECT_EQ(a.outbox->Wait().ids(), Harness(runner).Run(Prompt(clean, 10)).ids());
  // The same prefix again: computed anew, NaN again, never served from the cache.
  bad.push_back(1);
  const Transcript again = harness.Run(Prompt(bad, 10));
  EXPECT_EQ(again.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(again.usage.cached_tokens, 0u);
  EXPECT_EQ(harness.Run(Prompt(clean, 10)).ids(), a.outbox->Now().ids());
  const auto c = harness.counts();
  EXPECT_EQ(c.non_finite, 2u);
  EXPECT_EQ(c.of(Terminal::kInternal), 2u);
  harness.ExpectIdle();
}

TEST(EngineRegressionTest, NanWhileDecodingWithdrawsItsBlocks) {
  constexpr uint32_t kPoison = 200;
  FakeRunnerOptions runner = Scripted(9, {10, 11, 12, kPoison});
  runner.poison = kPoison;
  Harness harness(runner);
  const Request request = Prompt({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20);
  const Transcript t = harness.Run(request);
  EXPECT_EQ(t.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(t.tokens.size(), 4u);
  EXPECT_EQ(harness.counts().gauges.blocks_cached, 0u);
  EXPECT_EQ(harness.Run(request).usage.cached_tokens, 0u);
}

// A slow step of one does not hide another's cancellation; submissions from many threads all end.
TEST(EngineRegressionTest, ManyThreadsSubmitAndCancel) {
  Harness harness;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&harness, i] {
      std::mt19937 random(i);
      for (int j = 0; j < 40; ++j) {
        auto call = harness.Submit(Prompt({static_cast<uint32_t>(i), 2, 3}, 1 + random() % 20));
        ASSERT_TRUE(call.handle.ok());
        if (random() % 2) harness.engine().Cancel(*call.handle);
        EXPECT_EQ(call.outbox->Wait().after_end, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(harness.counts().received, 320u);
  harness.ExpectIdle();
}

}  // namespace
}  // namespace normserve::engine
