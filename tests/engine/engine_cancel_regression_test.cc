// SPDX-License-Identifier: Apache-2.0
// Cancels, deadlines and the sum over all endings: faults that other servers have had, each named
// after what it guards.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "base/fake_clock.h"
#include "engine/harness.h"

namespace normserve::engine {
namespace {

// A3: cancelled requests free their places within one step.
TEST(EngineCancelRegressionTest, CancelFreesItsPlaceWithinOneStep) {
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
TEST(EngineCancelRegressionTest, AThousandRandomCancelsLeaveNothingBehind) {
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

// A slow step of one does not hide another's cancellation; submissions from many threads all end.
TEST(EngineCancelRegressionTest, ManyThreadsSubmitAndCancel) {
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

// A16: expired while queued: never run. Expired while running: stopped within a step.
TEST(EngineCancelRegressionTest, DeadlineActsInTheQueueAndWithinOneStep) {
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

TEST(EngineCancelRegressionTest, ExpiredBeforeSubmissionNeverRuns) {
  base::FakeClock clock;
  Harness harness({}, {}, &clock);
  Request request = Prompt({1}, 5);
  request.deadline = clock.Now();
  EXPECT_EQ(harness.Run(request).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness.counts().steps, 0u);
}

// A17: every request ends in exactly one terminal.
TEST(EngineCancelRegressionTest, TerminalsSumToReceived) {
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

}  // namespace
}  // namespace normserve::engine
