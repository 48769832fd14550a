// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <cmath>
#include <thread>

#include "absl/time/clock.h"
#include "base/fake_clock.h"
#include "engine/harness.h"

namespace normserve::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kEos = text::FakeTokenizer::kEos;

std::vector<uint32_t> GreedyByHand(std::vector<uint32_t> tokens, uint32_t count) {
  const FakeRunner model{FakeRunnerOptions()};
  std::vector<uint32_t> out;
  for (; out.size() < count; tokens.push_back(out.back())) {
    const std::vector<float> logits = model.Logits(tokens);
    out.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  return out;
}

TEST(EngineTest, GeneratesWhatTheModelSays) {
  Harness harness;
  const Transcript t = harness.Run(Prompt({1, 2, 3}, 20));
  EXPECT_EQ(t.ids(), GreedyByHand({1, 2, 3}, 20));
  EXPECT_TRUE(t.status.ok());
  EXPECT_EQ(t.finish_reason, FinishReason::kMaxNewTokens);
  EXPECT_EQ(t.usage.prompt_tokens, 3u);
  EXPECT_EQ(t.usage.completion_tokens, 20u);
  EXPECT_THAT(t.tokens_per_delta, Each(1u));
  EXPECT_EQ(t.tokens_per_delta.size(), 20u);
  EXPECT_EQ(t.after_end, 0);
  const auto c = harness.counts();
  EXPECT_EQ(c.generated, 20u);
  EXPECT_EQ(c.first_tokens, 1u);
  EXPECT_EQ(c.inter_tokens, 19u);
  EXPECT_EQ(c.prompt_computed, 3u);
  EXPECT_EQ(c.of(Terminal::kLength), 1u);
  harness.ExpectIdle();
}

TEST(EngineTest, EosEndsAndIsReturnedButNotInTheText) {
  Harness harness(Scripted(1, {'h', 'i', kEos}));
  Request request = Prompt({1}, 10);
  request.stop.eos_token_ids = {kEos};
  request.output.text = true;
  const Transcript t = harness.Run(request);
  EXPECT_EQ(t.text, "hi");
  EXPECT_THAT(t.ids(), ElementsAre('h', 'i', kEos));
  EXPECT_EQ(t.finish_reason, FinishReason::kEos);
  EXPECT_EQ(t.stop_match, "");
  EXPECT_EQ(harness.counts().of(Terminal::kStop), 1u);
  request.output.skip_special_tokens = false;
  EXPECT_EQ(harness.Run(request).text, "hi</s>");
}

TEST(EngineTest, StopTokenIsNamed) {
  Harness harness(Scripted(1, {'a', 'b', 'c'}));
  Request request = Prompt({1}, 10);
  request.stop.stop_token_ids = {'b'};
  const Transcript t = harness.Run(request);
  EXPECT_THAT(t.ids(), ElementsAre('a', 'b'));
  EXPECT_EQ(t.finish_reason, FinishReason::kStopToken);
  EXPECT_EQ(t.stop_match, "98");
}

TEST(EngineTest, ContextAndPoolBothLimitGrowth) {
  FakeRunnerOptions context;
  context.info.max_context_tokens = 10;
  Transcript t = Harness(context).Run(Prompt({1, 2, 3}, 100));
  EXPECT_EQ(t.finish_reason, FinishReason::kContextLimit);
  EXPECT_EQ(t.usage.completion_tokens, 7u);
  FakeRunnerOptions pool;
  pool.info.blocks = 3;
  t = Harness(pool).Run(Prompt({1, 2, 3}, 100));
  EXPECT_EQ(t.finish_reason, FinishReason::kContextLimit);
  EXPECT_EQ(t.usage.completion_tokens, 9u);
}

TEST(EngineTest, ASecondRunOfAPromptHitsThePrefixCache) {
  Harness harness;
  const std::vector<uint32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Transcript first = harness.Run(Prompt(prompt, 5));
  const Transcript second = harness.Run(Prompt(prompt, 5));
  EXPECT_EQ(first.ids(), second.ids());
  EXPECT_EQ(first.usage.cached_tokens, 0u);
  EXPECT_EQ(second.usage.cached_tokens, 8u);
  const auto c = harness.counts();
  EXPECT_EQ(c.queried, 18u);
  EXPECT_EQ(c.hit, 8u);
  EXPECT_EQ(c.prompt_computed + c.prompt_cached, 18u);
}

TEST(EngineTest, ScoresEveryTokenFromScoreFromOn) {
  const std::vector<uint32_t> prompt = {9, 8, 7, 6, 5, 4, 3, 2, 1};
  const FakeRunner model{FakeRunnerOptions()};
  for (uint32_t from : {1u, 4u, 8u}) {
    for (uint32_t chunk : {1u, 3u, 64u}) {
      EngineOptions options;
      options.max_step_tokens = chunk;
      Harness harness({}, options);
      harness.Run(Prompt(prompt, 2));  // something to reuse
      Request request = ScoreFrom(prompt, from);
      request.output.top_logprobs = 2;
      const Transcript t = harness.Run(request);
      ASSERT_EQ(t.tokens.size(), prompt.size() - from);
      EXPECT_EQ(t.usage.completion_tokens, 0u);
      EXPECT_EQ(t.finish_reason, FinishReason::kNone);
      for (size_t i = 0; i < t.tokens.size(); ++i) {
        const auto end = prompt.begin() + from + i;
        const std::vector<float> logits = model.Logits({prompt.begin(), end});
        double sum = 0;
        for (float x : logits) sum += std::exp(static_cast<double>(x));
        EXPECT_EQ(t.tokens[i].id, *end);
        EXPECT_NEAR(t.tokens[i].logprob, logits[*end] - std::log(sum), 1e-5);
        const size_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        EXPECT_EQ(t.tokens[i].is_argmax, best == *end);
        ASSERT_EQ(t.tokens[i].top_ids.size(), 2u);
        EXPECT_EQ(t.tokens[i].top_ids[0], best);
      }
      EXPECT_EQ(harness.counts().of(Terminal::kScored), 1u);
      EXPECT_EQ(harness.counts().first_tokens, 1u);  // the generation's
      harness.ExpectIdle();
    }
  }
}

TEST(EngineTest, NothingToScoreEndsAtOnce) {
  Harness harness;
  const Transcript t = harness.Run(ScoreFrom({5}, 1));
  EXPECT_TRUE(t.status.ok());
  EXPECT_TRUE(t.tokens.empty());
  EXPECT_EQ(harness.counts().of(Terminal::kScored), 1u);
  EXPECT_EQ(harness.counts().steps, 0u);
  harness.ExpectIdle();
}

TEST(EngineTest, AFailedStepEndsItsBatchAndTheEngineLives) {
  Gate gate;
  FakeRunnerOptions options;
  int step = 0;
  options.before_step = [&](const scheduler::Batch&) {
    gate.Pass();
    return ++step == 2 ? absl::UnknownError("out of luck") : absl::OkStatus();
  };
  Harness harness(options);
  auto first = harness.Submit(Prompt({1, 2}, 20));
  gate.AwaitArrival(1);
  auto second = harness.Submit(Prompt({3, 4}, 20));
  gate.Open();
  for (auto* call : {&first, &second}) {
    const Transcript t = call->outbox->Wait();
    EXPECT_EQ(t.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(t.status.message()), HasSubstr("out of luck"));
  }
  EXPECT_EQ(harness.counts().of(Terminal::kInternal), 2u);
  harness.ExpectIdle();
  EXPECT_EQ(harness.Run(Prompt({1, 2}, 5)).ids(), GreedyByHand({1, 2}, 5));
}

TEST(EngineTest, TextNeedsATokenizer) {
  RecordingObserver observer;
  Engine engine("plain", {}, std::make_unique<FakeRunner>(FakeRunnerOptions()), nullptr, &observer);
  Request request = Prompt({1}, 3);
  request.output.text = true;
  EXPECT_EQ(engine.Submit(request, std::make_shared<RecordingOutbox>()).status().code(),
            absl::StatusCode::kInvalidArgument);
  request.output.text = false;
  auto outbox = std::make_shared<RecordingOutbox>();
  ASSERT_TRUE(engine.Submit(request, outbox).ok());
  EXPECT_EQ(outbox->Wait().tokens.size(), 3u);
}

TEST(EngineTest, DrainRefusesNewRequestsAndWaitsForTheOthers) {
  Gate gate;
  Harness harness(Gated(gate));
  auto call = harness.Submit(Prompt({1, 2}, 5));
  gate.AwaitArrival(1);
  std::thread drain([&] { harness.engine().Drain(absl::InfiniteFuture()); });
  // Draining begins on another thread: ask until it shows. What is accepted before ends as well.
  absl::Status refused;
  while (refused.code() != absl::StatusCode::kUnavailable) {
    refused = harness.Submit(Prompt({9}, 1)).handle.status();
    std::this_thread::yield();
  }
  EXPECT_FALSE(call.outbox->Now().finished);
  gate.Open();
  drain.join();
  EXPECT_TRUE(call.outbox->Now().finished);
  EXPECT_TRUE(call.outbox->Now().status.ok());
  EXPECT_EQ(harness.counts().of(Terminal::kShutdown), 1u);
  harness.ExpectIdle();
}

TEST(EngineTest, DrainEndsTheRestAtItsDeadline) {
  Gate gate;
  base::FakeClock clock;
  // Far more steps than can run while the other thread wakes up.
  FakeRunnerOptions runner = Gated(gate);
  runner.info.max_context_tokens = 1000000;
  runner.info.blocks = 250000;
  Harness harness(runner, {}, &clock);
  auto call = harness.Submit(Prompt({1, 2}, 900000));
  gate.AwaitArrival(1);
  std::thread drain([&] { harness.engine().Drain(clock.Now() + absl::Seconds(30)); });
  clock.AwaitWaiter();
  clock.Advance(absl::Seconds(31));
  gate.Open();
  drain.join();
  const Transcript t = call.outbox->Now();
  EXPECT_TRUE(t.finished);
  EXPECT_EQ(t.status.code(), absl::StatusCode::kUnavailable);
  harness.ExpectIdle();
}

TEST(EngineTest, DestructionEndsWhatIsLeft) {
  Gate gate;
  EngineOptions options;
  options.max_running = 1;
  Harness harness(Gated(gate), options);
  auto running = harness.Submit(Prompt({1, 2}, 200));
  auto waiting = harness.Submit(Prompt({3}, 200));
  gate.AwaitArrival(1);
  gate.Open();
  harness.Destroy();
  for (auto* call : {&running, &waiting}) {
    const Transcript t = call->outbox->Now();
    EXPECT_TRUE(t.finished);
    EXPECT_TRUE(t.status.ok() || t.status.code() == absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(waiting.outbox->Now().after_end, 0);
  harness.ExpectIdle();
}

TEST(EngineTest, AnIdleEngineSleeps) {
  Harness harness;
  harness.Run(Prompt({1, 2, 3}, 20));
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  absl::SleepFor(absl::Milliseconds(300));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const absl::Duration used =
      absl::DurationFromTimespec(after) - absl::DurationFromTimespec(before);
  EXPECT_LT(used, absl::Milliseconds(30));
}

TEST(EngineTest, TimesOfARequestAddUp) {
  base::FakeClock clock;
  FakeRunnerOptions options;
  options.before_step = [&](const scheduler::Batch&) {
    clock.Advance(absl::Seconds(1));
    return absl::OkStatus();
  };
  Harness harness(options, {}, &clock);
  harness.Run(Prompt({1, 2}, 4));
  const auto times = harness.counts().times.at(0);
  EXPECT_DOUBLE_EQ(times.queue, 0);
  EXPECT_DOUBLE_EQ(times.prefill, 1);
  EXPECT_DOUBLE_EQ(times.time_to_first_token, 1);
  EXPECT_DOUBLE_EQ(times.decode, 3);
  EXPECT_DOUBLE_EQ(times.end_to_end, 4);
}

}  // namespace
}  // namespace normserve::engine
