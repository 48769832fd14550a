// SPDX-License-Identifier: Apache-2.0
// Rows for the sampling kernel as the engine describes them, run in the emulator between guard bands and
// in both orders of threads, and held against engine::Sampler.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "emu/emu_rows.h"
#include "engine/sample_tasks.h"
#include "engine/sampler.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {

struct SampleCase {
  std::vector<float> logits;
  engine::SamplingParams params;
  std::vector<uint32_t> prompt, generated, banned;
  bool scoring = false;
  uint32_t target = 0;
  bool logprob = true;
  uint32_t top_logprobs = 0;

  engine::RowTask Task() const {
    engine::RowTask task;
    task.sampling = scoring ? nullptr : &params;
    task.prompt = prompt;
    task.generated = generated;
    task.banned = banned;
    task.target = target;
    task.logprob = logprob;
    task.top_logprobs = top_logprobs;
    return task;
  }
};

// Row r of the logits begins anywhere, and what lies between rows is NaN.
struct SampleRun {
  static constexpr size_t kBand = 3;
  size_t vocab, stride;
  std::vector<float> logits, work;
  std::vector<SampledRow> results;  // one more before and one after

  explicit SampleRun(const std::vector<SampleCase>& cases)
      : vocab(cases.front().logits.size()),
        stride(vocab + kBand),
        logits(cases.size() * stride + kBand, std::nanf("")),
        work(cases.size() * vocab + 2 * kBand, 1536.0f),
        results(cases.size() + 2) {
    std::memset(static_cast<void*>(results.data()), 0x5a, results.size() * sizeof(SampledRow));
    for (size_t r = 0; r < cases.size(); ++r) {
      std::copy(cases[r].logits.begin(), cases[r].logits.end(), logits.begin() + kBand + r * stride);
    }
  }

  std::vector<SampledRow> Launch(const std::vector<SampleTask>& tasks,
                                 const std::vector<TokenAdjustment>& adjustments, bool reversed) {
    const std::vector<float> before = logits;
    const SampledRow edge = results.front();
    SampleArgs args;
    args.logits = logits.data() + kBand;
    args.logits_stride = static_cast<int64_t>(stride);
    args.vocab = static_cast<int64_t>(vocab);
    args.tasks = tasks.data();
    args.adjustments = adjustments.data();
    args.work = work.data() + kBand;
    args.results = results.data() + 1;
    const OrderScope order(reversed);
    SampleRowsCuda(args, static_cast<int64_t>(tasks.size()), nullptr);
    EXPECT_TRUE(SameBits(logits, before)) << "logits changed";
    for (const SampledRow& row : {results.front(), results.back()}) {
      EXPECT_EQ(std::memcmp(&row, &edge, sizeof(row)), 0) << "written outside the results";
    }
    ExpectWorkIsOfThoseWhoNeedIt(tasks);
    return {results.begin() + 1, results.end() - 1};
  }

  void ExpectWorkIsOfThoseWhoNeedIt(const std::vector<SampleTask>& tasks) const {
    for (size_t i = 0; i < work.size(); ++i) {
      const size_t row = (i - kBand) / vocab;
      if (i >= kBand && row < tasks.size()) {
        const SampleTask& task = tasks[row];
        const bool greedy = task.temperature == 0.0f || task.top_k == 1;
        if (task.target < 0 && (!greedy || task.adjustments > 0)) continue;
      }
      ASSERT_EQ(work[i], 1536.0f) << "work written at " << i;
    }
  }
};

// All cases in one launch, in both orders; with other uniform numbers than the seeds' where there are any.
inline std::vector<SampledRow> RunWith(const std::vector<SampleCase>& cases,
                                       const std::vector<double>& uniforms) {
  std::vector<engine::RowTask> rows;
  for (const SampleCase& c : cases) rows.push_back(c.Task());
  engine::SampleTasks described(static_cast<uint32_t>(cases.front().logits.size()));
  EXPECT_TRUE(described.Describe(rows));
  std::vector<SampleTask> tasks(described.tasks().begin(), described.tasks().end());
  for (size_t i = 0; i < uniforms.size(); ++i) tasks[i].uniform = uniforms[i];
  const std::vector<TokenAdjustment> adjustments(described.adjustments().begin(),
                                                 described.adjustments().end());
  const std::vector<SampledRow> forward = SampleRun(cases).Launch(tasks, adjustments, false);
  EXPECT_TRUE(SameBits(forward, SampleRun(cases).Launch(tasks, adjustments, true)))
      << "depends on the order of threads";
  return forward;
}

inline void ExpectLogProb(float got, float want) {
  if (got == want) return;  // -inf too, where a logit is as low as the lowest float
  EXPECT_NEAR(got, want, 1e-5 + 2e-7 * std::fabs(want));
}

inline void ExpectSameDecision(const engine::RowResult& got, const engine::RowResult& want,
                               const SampleCase& c, size_t row) {
  testing::ScopedTrace trace(
      __FILE__, __LINE__,
      testing::Message() << "row " << row << " of " << c.logits.size() << " ids, scoring " << c.scoring
                         << ", temperature " << c.params.temperature << ", top_k " << c.params.top_k
                         << ", top_p " << c.params.top_p << ", min_p " << c.params.min_p << ", banned "
                         << c.banned.size() << ", repetition " << c.params.repetition_penalty
                         << ", presence " << c.params.presence_penalty << ", frequency "
                         << c.params.frequency_penalty << ", biases " << c.params.logit_bias.size());
  ASSERT_EQ(got.finite, want.finite);
  EXPECT_EQ(got.token.id, want.token.id);
  EXPECT_EQ(got.token.is_argmax, want.token.is_argmax);
  if (got.token.id == want.token.id) ExpectLogProb(got.token.logprob, want.token.logprob);
  ASSERT_EQ(got.token.top_ids, want.token.top_ids);
  for (size_t i = 0; i < want.token.top_logprobs.size(); ++i) {
    ExpectLogProb(got.token.top_logprobs[i], want.token.top_logprobs[i]);
  }
}

// Runs the cases and compares every decision with the CPU's.
inline std::vector<SampledRow> Check(const std::vector<SampleCase>& cases) {
  const std::vector<SampledRow> rows = RunWith(cases, {});
  engine::Sampler sampler;
  for (size_t r = 0; r < cases.size(); ++r) {
    const engine::RowTask task = cases[r].Task();
    ExpectSameDecision(engine::FromSampled(rows[r], task), sampler.Decide(cases[r].logits, task),
                       cases[r], r);
  }
  return rows;
}

}  // namespace normserve::kernels
