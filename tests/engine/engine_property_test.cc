// SPDX-License-Identifier: Apache-2.0
// Random traffic on engines of random shape. Whatever the batch, the chunks, preemptions and prefix
// hits, each request's output is that of a run alone, to the last bit.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/time/clock.h"
#include "engine/harness.h"

namespace normserve::engine {
namespace {

constexpr uint32_t kEos = text::FakeTokenizer::kEos;

Request RandomRequest(std::mt19937& random) {
  // Few first tokens and long equal runs, so that prefixes are shared.
  std::vector<uint32_t> prompt(1 + random() % 28, static_cast<uint32_t>('a' + random() % 2));
  for (size_t i = random() % prompt.size(); i < prompt.size(); ++i) prompt[i] = 'a' + random() % 3;
  if (random() % 5 == 0 && prompt.size() > 1) {
    return ScoreFrom(prompt, 1 + random() % (prompt.size() - 1));
  }
  Request request = Seeded(prompt, 1 + random() % 24, random() % 3, random() % 2 ? 0.8f : 0.0f);
  request.output.logprobs = true;
  request.output.top_logprobs = random() % 3;
  request.output.text = random() % 2;
  request.stop.eos_token_ids = {kEos, 'e'};
  request.stop.min_new_tokens = random() % 2 ? random() % request.stop.max_new_tokens : 0;
  if (random() % 3 == 0) request.stop.stop_strings = {"x", "ab"};
  if (random() % 4 == 0) request.sampling.top_p = 0.6f;
  if (random() % 4 == 0) request.sampling.frequency_penalty = 0.7f;
  request.priority = static_cast<int32_t>(random() % 3);
  return request;
}

FakeRunnerOptions Model(uint32_t blocks) {
  FakeRunnerOptions options;
  options.info.blocks = blocks;
  options.info.max_context_tokens = 52;  // also the smallest pool below: one limit in every shape
  // Mostly letters, so that stop strings and shared prefixes happen.
  options.edit = [](const std::vector<uint32_t>&, std::vector<float>& logits) {
    for (uint32_t id = 'a'; id <= 'f'; ++id) logits[id] += 5.0f;
  };
  return options;
}

void ExpectSame(const Transcript& got, const Transcript& want) {
  EXPECT_EQ(got.ids(), want.ids());
  EXPECT_EQ(got.logprobs(), want.logprobs());
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  EXPECT_EQ(got.stop_match, want.stop_match);
  EXPECT_EQ(got.usage.completion_tokens, want.usage.completion_tokens);
  for (size_t i = 0; i < std::min(got.tokens.size(), want.tokens.size()); ++i) {
    EXPECT_EQ(got.tokens[i].top_ids, want.tokens[i].top_ids);
    EXPECT_EQ(got.tokens[i].top_logprobs, want.tokens[i].top_logprobs);
    EXPECT_EQ(got.tokens[i].is_argmax, want.tokens[i].is_argmax);
  }
}

TEST(EnginePropertyTest, OutputsEqualTheRunAloneBitForBit) {
  std::mt19937 random(11);
  std::vector<Request> requests;
  for (int i = 0; i < 64; ++i) requests.push_back(RandomRequest(random));
  EngineOptions alone;
  alone.prefix_cache = false;
  alone.max_running = 1;
  Harness reference(Model(64), alone);
  std::vector<Transcript> want;
  for (const Request& request : requests) want.push_back(reference.Run(request));

  uint64_t preempted = 0, hits = 0, drafted = 0, accepted = 0;
  for (uint32_t step_tokens : {1u, 2u, 3u, 5u, 8u, 64u, 512u}) {
    for (uint32_t blocks : {13u, 20u, 200u}) {
      for (bool prefix_cache : {false, true}) {
        const uint32_t drafts = random() % 3 * 3;
        SCOPED_TRACE(testing::Message()
                     << step_tokens << " " << blocks << " " << prefix_cache << " " << drafts);
        EngineOptions options;
        options.max_step_tokens = step_tokens;
        options.prefix_cache = prefix_cache;
        options.max_running = 1 + random() % 16;
        options.draft_tokens = drafts;
        Gate gate;
        FakeRunnerOptions runner = Model(blocks);
        runner.before_step = Gated(gate).before_step;
        Harness harness(runner, options);
        std::vector<size_t> order(requests.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        std::map<size_t, Harness::Call> calls;
        for (size_t i : order) calls.emplace(i, harness.Submit(requests[i]));
        gate.Open();  // from here on the schedule does not depend on who was faster
        for (auto& [i, call] : calls) ExpectSame(call.outbox->Wait(), want[i]);
        harness.ExpectIdle();
        preempted += harness.counts().preempted;
        hits += harness.counts().hit;
        drafted += harness.counts().drafted;
        accepted += harness.counts().accepted;
        if (HasFailure()) return;
      }
    }
  }
  // Else the runs above would prove little.
  EXPECT_GT(preempted, 20u);
  EXPECT_GT(hits, 500u);
  EXPECT_GT(accepted, 50u);
  EXPECT_GT(drafted, 2 * accepted);  // wrong ones too
}

TEST(EnginePropertyTest, CancelsAndDeadlinesDisturbNobodyElse) {
  std::mt19937 random(12);
  EngineOptions alone;
  alone.prefix_cache = false;
  Harness reference(Model(64), alone);
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(round);
    EngineOptions options;
    options.max_step_tokens = 1 + random() % 30;
    options.max_mixed_step_tokens = random() % 12;
    options.max_running = 1 + random() % 8;
    options.draft_tokens = random() % 4;
    Harness harness(Model(13 + random() % 10), options);
    std::vector<std::pair<Request, Harness::Call>> calls;
    for (int i = 0; i < 40; ++i) {
      Request request = RandomRequest(random);
      if (random() % 6 == 0) request.deadline = absl::Now() + absl::Microseconds(random() % 2000);
      calls.emplace_back(request, harness.Submit(request));
      const size_t victim = random() % calls.size();
      if (random() % 3 == 0) harness.engine().Cancel(*calls[victim].second.handle);
    }
    for (auto& [request, call] : calls) {
      const Transcript got = call.outbox->Wait();
      EXPECT_EQ(got.after_end, 0);
      if (got.status.ok()) {
        request.deadline = absl::InfiniteFuture();
        ExpectSame(got, reference.Run(request));
      } else {
        EXPECT_TRUE(absl::IsCancelled(got.status) || absl::IsDeadlineExceeded(got.status));
      }
    }
    harness.ExpectIdle();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace normserve::engine
