// SPDX-License-Identifier: Apache-2.0
// That a task means to the kernel what it means to engine::Sampler is what tests/emu/sample_cuda_test.cc shows.
#include "engine/sample_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/sampler.h"

namespace normserve::engine {
namespace {

using kernels::SampledRow;
using kernels::SampleTask;
using kernels::TokenAdjustment;
using ::testing::ElementsAre;

testing::Matcher<TokenAdjustment> Adjusts(int32_t id, float bias, int32_t generated, uint32_t flags) {
  return testing::AllOf(testing::Field(&TokenAdjustment::id, id),
                        testing::Field(&TokenAdjustment::bias, bias),
                        testing::Field(&TokenAdjustment::generated, generated),
                        testing::Field(&TokenAdjustment::flags, flags));
}

// Ids in the order of their first mention, each once, and of every row its own.
TEST(SampleTasksTest, EveryIdOfARowIsAdjustedOnce) {
  SamplingParams params;
  params.logit_bias = {{5, 2.0f}, {7, -1.0f}};
  params.repetition_penalty = 1.5f;
  params.frequency_penalty = 0.5f;
  const std::vector<uint32_t> prompt = {3, 5, 3}, generated = {8, 5, 8}, banned = {7, 99, 1};
  RowTask task;
  task.sampling = &params;
  task.prompt = prompt;
  task.generated = generated;
  task.banned = banned;
  SampleTasks tasks(10);
  ASSERT_TRUE(tasks.Describe(std::vector<RowTask>{task, task}));
  const uint32_t repeated = TokenAdjustment::kRepeated, out = TokenAdjustment::kBanned;
  const std::vector<testing::Matcher<TokenAdjustment>> row = {
      Adjusts(5, 2.0f, 1, repeated), Adjusts(7, -1.0f, 0, out), Adjusts(3, 0.0f, 0, repeated),
      Adjusts(8, 0.0f, 2, repeated), Adjusts(1, 0.0f, 0, out)};
  std::vector<testing::Matcher<TokenAdjustment>> both = row;
  both.insert(both.end(), row.begin(), row.end());
  EXPECT_THAT(tasks.adjustments(), testing::ElementsAreArray(both));
  for (int32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(tasks.tasks()[r].first_adjustment, 5 * r);
    EXPECT_EQ(tasks.tasks()[r].adjustments, 5);
  }
}

TEST(SampleTasksTest, NothingIsAdjustedWithoutPenalties) {
  const SamplingParams params;
  const std::vector<uint32_t> tokens = {3, 5, 3};
  RowTask task;
  task.sampling = &params;
  task.prompt = tokens;
  task.generated = tokens;
  SampleTasks tasks(10);
  ASSERT_TRUE(tasks.Describe({&task, 1}));
  EXPECT_EQ(tasks.adjustments().size(), 0u);
  EXPECT_EQ(tasks.tasks()[0].adjustments, 0);
  EXPECT_EQ(tasks.tasks()[0].target, -1);
}

TEST(SampleTasksTest, TheNumberIsThatOfSeedAndPosition) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.seed = 42;
  const std::vector<uint32_t> generated = {1};
  RowTask task;
  task.sampling = &params;
  task.generated = generated;
  SampleTasks tasks(10);
  ASSERT_TRUE(tasks.Describe({&task, 1}));
  EXPECT_EQ(tasks.tasks()[0].uniform, UniformAt(42, 1));
  EXPECT_EQ(tasks.tasks()[0].temperature, 0.5f);
  params.temperature = kGreedyTemperature / 2;
  ASSERT_TRUE(tasks.Describe({&task, 1}));
  EXPECT_EQ(tasks.tasks()[0].temperature, 0.0f);
}

TEST(SampleTasksTest, WhatTheKernelDoesNotDoIsTheHostsWork) {
  RowTask task;
  task.top_logprobs = kernels::kMaxSampledTop;
  EXPECT_TRUE(SampleTasks(10).Describe({&task, 1}));
  EXPECT_TRUE(SampleTasks(kernels::kMaxSampledVocabulary).Describe({&task, 1}));
  EXPECT_FALSE(SampleTasks(kernels::kMaxSampledVocabulary + 1).Describe({&task, 1}));
  ++task.top_logprobs;
  EXPECT_FALSE(SampleTasks(10).Describe({&task, 1}));
}

TEST(SampleTasksTest, AResultHasWhatTheTaskAskedFor) {
  SampledRow row;
  row.finite = row.is_argmax = 1;
  row.id = 4;
  row.logprob = -0.5f;
  for (int32_t& id : row.top_ids) id = -1;
  row.top_ids[0] = 4;
  row.top_ids[1] = 2;
  row.top_logprobs[1] = -1.5f;
  RowTask task;
  task.top_logprobs = 5;  // of a vocabulary of two
  const TokenOutput scored = FromSampled(row, task).token;
  EXPECT_EQ(scored.id, 4u);
  EXPECT_EQ(scored.logprob, -0.5f);
  EXPECT_TRUE(scored.is_argmax);
  EXPECT_THAT(scored.top_ids, ElementsAre(4, 2));
  EXPECT_THAT(scored.top_logprobs, ElementsAre(0.0f, -1.5f));
  const SamplingParams params;
  task.sampling = &params;
  EXPECT_FALSE(FromSampled(row, task).token.is_argmax);
  row.finite = 0;
  EXPECT_FALSE(FromSampled(row, task).finite);
}

}  // namespace
}  // namespace normserve::engine
