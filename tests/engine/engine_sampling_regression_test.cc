// SPDX-License-Identifier: Apache-2.0
// Seeds, extreme parameters and rows of NaN: faults that other servers have had, each named after
// what it guards.
#include <gtest/gtest.h>

#include <vector>

#include "engine/harness.h"

namespace normserve::engine {
namespace {

// A7: a seeded request depends on its own inputs alone.
TEST(EngineSamplingRegressionTest, SeededOutputIgnoresNeighbours) {
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
TEST(EngineSamplingRegressionTest, TinyTemperatureAndTopPTendToGreedy) {
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

// A19: NaN ends its own request, is counted, poisons no cache and touches no neighbour.
TEST(EngineSamplingRegressionTest, NanEndsItsRequestAloneAndLeavesNoReusableBlocks) {
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

TEST(EngineSamplingRegressionTest, NanWhileDecodingWithdrawsItsBlocks) {
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

}  // namespace
}  // namespace normserve::engine
