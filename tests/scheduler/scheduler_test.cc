// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace normserve::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SchedulerOptions Options(uint32_t step_tokens, uint32_t running, uint32_t blocks) {
  SchedulerOptions options;
  options.max_step_tokens = step_tokens;
  options.max_running = running;
  options.blocks = blocks;
  options.block_size = 4;
  return options;
}

std::vector<uint32_t> Prompt(uint32_t size, uint32_t first = 100) {
  std::vector<uint32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void AddPrompt(Scheduler& scheduler, SequenceId id, std::vector<uint32_t> tokens,
               int32_t priority = 0, std::optional<uint32_t> score_from = std::nullopt,
               uint32_t max_tokens = 1000) {
  scheduler.Add(id, std::move(tokens), priority, absl::UnixEpoch() + id * absl::Milliseconds(1),
                score_from, max_tokens);
}

// Runs one step in which each row gives `token`.
const Plan& Step(Scheduler& scheduler, uint32_t token = 1, bool finite = true) {
  const Plan& plan = scheduler.Schedule();
  scheduler.Commit(std::vector<RowOutcome>(plan.batch.logits_rows.size(), {token, finite}));
  EXPECT_TRUE(scheduler.Check().ok()) << scheduler.Check();
  return plan;
}

TEST(SchedulerTest, WritesABatchOfAPrefillAndADecode) {
  Scheduler scheduler(Options(16, 4, 8));
  AddPrompt(scheduler, 1, {7, 8, 9, 10, 11});
  Step(scheduler, 12);
  AddPrompt(scheduler, 2, {20, 21});
  const Batch& batch = scheduler.Schedule().batch;
  const auto& one = scheduler.sequence(1).blocks;
  const auto& two = scheduler.sequence(2).blocks;
  EXPECT_THAT(batch.token_ids, ElementsAre(12, 20, 21));
  EXPECT_THAT(batch.positions, ElementsAre(5, 0, 1));
  EXPECT_THAT(batch.slots, ElementsAre(one[1] * 4 + 1, two[0] * 4, two[0] * 4 + 1));
  EXPECT_THAT(batch.token_sequence, ElementsAre(0, 1, 1));
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.max_blocks, 2);
  EXPECT_THAT(batch.block_tables, ElementsAre(one[0], one[1], two[0], 0));
  EXPECT_THAT(batch.logits_rows, ElementsAre(0, 2));
  EXPECT_THAT(batch.logits_sequence, ElementsAre(1, 2));
}

TEST(SchedulerTest, ChunksAPromptThatExceedsTheBudget) {
  Scheduler scheduler(Options(3, 3, 8));
  AddPrompt(scheduler, 1, Prompt(8));
  EXPECT_EQ(Step(scheduler).prefill_tokens, 3u);
  EXPECT_THAT(scheduler.Schedule().batch.logits_rows, IsEmpty());
  scheduler.Commit({});
  const Plan& last = Step(scheduler);
  EXPECT_EQ(last.prefill_tokens, 2u);
  EXPECT_EQ(last.prompt_tokens, 2u);
  EXPECT_THAT(last.batch.logits_rows, ElementsAre(1));
}

TEST(SchedulerTest, DecodeRowsComeBeforePrefillChunks) {
  Scheduler scheduler(Options(4, 4, 32));
  AddPrompt(scheduler, 1, Prompt(2));
  AddPrompt(scheduler, 2, Prompt(2));
  Step(scheduler);
  AddPrompt(scheduler, 3, Prompt(20));
  const Plan& plan = Step(scheduler);
  EXPECT_EQ(plan.decode_tokens, 2u);
  EXPECT_EQ(plan.prefill_tokens, 2u);
}

TEST(SchedulerTest, PromptsTakeWhatAMixedStepLeavesThem) {
  SchedulerOptions options = Options(64, 64, 64);
  options.max_mixed_step_tokens = 20;
  Scheduler scheduler(options);
  AddPrompt(scheduler, 1, Prompt(64));
  EXPECT_EQ(Step(scheduler).prefill_tokens, 64u);  // nobody decodes
  AddPrompt(scheduler, 2, Prompt(40, 500));
  EXPECT_EQ(Step(scheduler).prefill_tokens, 19u);
  EXPECT_EQ(Step(scheduler).prefill_tokens, 19u);
  AddPrompt(scheduler, 3, Prompt(40, 600));
  EXPECT_EQ(Step(scheduler).prefill_tokens, 2u + 17u);  // the end of one, the beginning of the next
  scheduler.Finish(1);
  scheduler.Finish(2);
  EXPECT_EQ(Step(scheduler).prefill_tokens, 23u);  // nobody decodes
}

TEST(SchedulerTest, AMixedStepHoldsNoDecodeRowBackAndLetsPromptsGoOn) {
  SchedulerOptions options = Options(64, 64, 64);
  options.max_mixed_step_tokens = 2;
  Scheduler scheduler(options);
  for (SequenceId id = 1; id <= 4; ++id) {
    AddPrompt(scheduler, id, Prompt(4, 100 * static_cast<uint32_t>(id)));
  }
  Step(scheduler);
  AddPrompt(scheduler, 5, Prompt(40, 900));
  const Plan& plan = Step(scheduler);
  EXPECT_EQ(plan.decode_tokens, 4u);
  EXPECT_EQ(plan.prefill_tokens, kLeastPrefill);
}

TEST(SchedulerTest, ReusesFullBlocksButComputesTheLastToken) {
  Scheduler scheduler(Options(64, 4, 16));
  AddPrompt(scheduler, 1, Prompt(8));
  Step(scheduler);
  AddPrompt(scheduler, 2, Prompt(8));  // 2 full blocks, of which the last must be computed again
  const Plan& plan = Step(scheduler);
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].cached_tokens, 4u);
  EXPECT_EQ(scheduler.sequence(1).blocks[0], scheduler.sequence(2).blocks[0]);
  EXPECT_NE(scheduler.sequence(1).blocks[1], scheduler.sequence(2).blocks[1]);
}

TEST(SchedulerTest, ReusesGeneratedBlocksToo) {
  Scheduler scheduler(Options(64, 4, 16));
  AddPrompt(scheduler, 1, {5, 6, 7});
  for (int i = 0; i < 3; ++i) Step(scheduler, 50 + i);
  scheduler.Finish(1);
  AddPrompt(scheduler, 2, {5, 6, 7, 50, 51});
  EXPECT_EQ(Step(scheduler).admitted[0].cached_tokens, 4u);
}

TEST(SchedulerTest, ScoringWantsEveryRowFromScoreFromOn) {
  Scheduler scheduler(Options(4, 4, 16));
  AddPrompt(scheduler, 1, Prompt(7), 0, 3);
  EXPECT_THAT(scheduler.Schedule().batch.logits_rows, ElementsAre(2, 3));
  scheduler.Commit(std::vector<RowOutcome>(2));
  // The last token is a target only.
  const Batch& batch = scheduler.Schedule().batch;
  EXPECT_THAT(batch.positions, ElementsAre(4, 5));
  EXPECT_THAT(batch.logits_rows, ElementsAre(0, 1));
  scheduler.Commit(std::vector<RowOutcome>(2));
  EXPECT_EQ(scheduler.sequence(1).tokens.size(), 7u);
}

TEST(SchedulerTest, ScoringReusesNoPositionWhoseRowIsWanted) {
  Scheduler scheduler(Options(64, 4, 32));
  AddPrompt(scheduler, 1, Prompt(20));
  Step(scheduler);
  AddPrompt(scheduler, 2, Prompt(20), 0, 1);
  EXPECT_EQ(Step(scheduler).admitted[0].cached_tokens, 0u);
  AddPrompt(scheduler, 3, Prompt(20), 0, 13);
  const Plan& plan = Step(scheduler);
  EXPECT_EQ(plan.admitted[0].cached_tokens, 12u);
  EXPECT_EQ(std::count(plan.batch.logits_sequence.begin(), plan.batch.logits_sequence.end(), 3u),
            7);
}

TEST(SchedulerTest, PreemptsTheLatestArrivedOfTheLowestPriorityAndResumesItFirst) {
  Scheduler scheduler(Options(64, 4, 6));
  AddPrompt(scheduler, 1, Prompt(4, 0));
  AddPrompt(scheduler, 2, Prompt(4, 10), -1);
  AddPrompt(scheduler, 3, Prompt(4, 20));
  uint32_t preempted = 0;
  for (int i = 0; i < 8 && preempted == 0; ++i) preempted += Step(scheduler).preempted;
  ASSERT_EQ(preempted, 1u);
  EXPECT_TRUE(scheduler.sequence(1).running);
  EXPECT_FALSE(scheduler.sequence(2).running);
  EXPECT_TRUE(scheduler.sequence(3).running);
  const size_t kept = scheduler.sequence(2).tokens.size();
  EXPECT_GT(kept, 4u);
  AddPrompt(scheduler, 4, Prompt(4, 30), 100);
  scheduler.Finish(1);
  scheduler.Finish(3);
  const Plan& plan = Step(scheduler);
  ASSERT_EQ(plan.admitted.size(), 2u);
  EXPECT_EQ(plan.admitted[0].id, 2u);
  EXPECT_TRUE(plan.admitted[0].resumed);
  EXPECT_EQ(scheduler.sequence(2).tokens.size(), kept + 1);
  EXPECT_EQ(plan.prompt_tokens, 4u);  // those of 4: recomputing counts none again
}

TEST(SchedulerTest, PriorityOrdersTheQueueAndWaitingOutweighsIt) {
  Scheduler scheduler(Options(64, 1, 16));
  const absl::Time t0 = absl::UnixEpoch();
  scheduler.Add(1, Prompt(4), 0, t0, std::nullopt, 1000);
  scheduler.Add(2, Prompt(4), 5, t0 + absl::Seconds(1), std::nullopt, 1000);
  scheduler.Add(3, Prompt(4), 100, t0 + absl::Seconds(150), std::nullopt, 1000);
  std::vector<SequenceId> order;
  for (int i = 0; i < 3; ++i) {
    order.push_back(Step(scheduler).admitted.at(0).id);
    scheduler.Finish(order.back());
  }
  EXPECT_THAT(order, ElementsAre(2, 1, 3));
}

TEST(SchedulerTest, A5_APromptAsLargeAsThePoolRunsOnceTheOthersHaveEnded) {
  Scheduler scheduler(Options(16, 4, 4));
  AddPrompt(scheduler, 1, Prompt(3));
  Step(scheduler);
  AddPrompt(scheduler, 2, Prompt(16, 50));
  AddPrompt(scheduler, 3, Prompt(2, 90));
  for (int i = 0; i < 4; ++i) Step(scheduler);
  EXPECT_FALSE(scheduler.sequence(2).running);
  EXPECT_FALSE(scheduler.sequence(3).running);  // no overtaking
  scheduler.Finish(1);
  Step(scheduler);
  EXPECT_EQ(scheduler.sequence(2).tokens.size(), 17u);
  scheduler.Finish(2);
  Step(scheduler);
  EXPECT_EQ(scheduler.sequence(3).tokens.size(), 3u);
}

TEST(SchedulerTest, A19_BlocksOfANonFiniteRowNeverEnterThePrefixCache) {
  Scheduler scheduler(Options(64, 4, 16));
  AddPrompt(scheduler, 1, Prompt(9));
  Step(scheduler, 0, /*finite=*/false);
  scheduler.Finish(1);
  EXPECT_EQ(scheduler.pool().cached(), 0u);
  // One that was finite first: what it published is withdrawn.
  AddPrompt(scheduler, 2, Prompt(9));
  Step(scheduler);
  Step(scheduler, 0, /*finite=*/false);
  scheduler.Finish(2);
  EXPECT_EQ(scheduler.pool().cached(), 0u);
  AddPrompt(scheduler, 3, Prompt(9));
  EXPECT_EQ(Step(scheduler).admitted[0].cached_tokens, 0u);
}

TEST(SchedulerTest, A19_ChunksWithoutARowDoNotEnterThePrefixCache) {
  Scheduler scheduler(Options(4, 4, 16));
  AddPrompt(scheduler, 1, Prompt(12));
  Step(scheduler);
  Step(scheduler);
  scheduler.Finish(1);  // before any row attended to the two blocks
  EXPECT_EQ(scheduler.pool().cached(), 0u);
}

TEST(SchedulerTest, FinishBetweenAnyStepsFreesAllBlocks) {
  Scheduler scheduler(Options(3, 2, 6));
  for (SequenceId id = 1; id <= 4; ++id) AddPrompt(scheduler, id, Prompt(7, 10 * id));
  Step(scheduler);
  scheduler.Finish(4);  // waiting
  scheduler.Finish(1);  // in prefill
  scheduler.Finish(1);  // unknown by now
  for (int i = 0; i < 6; ++i) Step(scheduler);
  scheduler.Finish(2);
  scheduler.Finish(3);
  EXPECT_EQ(scheduler.pool().used(), 0u);
  EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0u);
  EXPECT_TRUE(scheduler.Schedule().batch.empty());
}

std::vector<RowOutcome> Decided(const std::vector<uint32_t>& tokens) {
  std::vector<RowOutcome> outcomes;
  for (const uint32_t token : tokens) outcomes.push_back({token, true});
  return outcomes;
}

// 5 6 7 8 5 6: what followed 5 6 before is 7 8, then 5 6 again.
SchedulerOptions WithDrafts(uint32_t drafts) {
  SchedulerOptions options = Options(16, 4, 16);
  options.draft_tokens = drafts;
  return options;
}

TEST(SchedulerTest, GuessesRunWithTheNextTokenAndStayWhileTheyAreRight) {
  Scheduler scheduler(WithDrafts(3));
  AddPrompt(scheduler, 1, {5, 6, 7, 8, 5});
  Step(scheduler, 6);
  const Plan& plan = scheduler.Schedule();
  EXPECT_THAT(plan.batch.token_ids, ElementsAre(6, 7, 8, 5));
  EXPECT_THAT(plan.batch.positions, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(plan.batch.logits_rows, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(plan.draft_tokens, 3u);
  EXPECT_EQ(plan.decode_tokens, 4u);
  // 7 and 8 are right, then comes a 9: the guess 5 and its row do not hold.
  EXPECT_THAT(scheduler.Commit(Decided({7, 8, 9, 1})), ElementsAre(true, true, true, false));
  EXPECT_THAT(scheduler.sequence(1).tokens, ElementsAre(5, 6, 7, 8, 5, 6, 7, 8, 9));
  EXPECT_EQ(scheduler.sequence(1).computed, 8u);
  EXPECT_TRUE(scheduler.Check().ok()) << scheduler.Check();
  // Nothing ends in 8 9: no guess, and the position of the wrong one is computed anew.
  const Plan& next = scheduler.Schedule();
  EXPECT_THAT(next.batch.token_ids, ElementsAre(9));
  EXPECT_THAT(next.batch.positions, ElementsAre(8));
  scheduler.Commit(Decided({2}));
  EXPECT_THAT(scheduler.sequence(1).tokens, ElementsAre(5, 6, 7, 8, 5, 6, 7, 8, 9, 2));
}

TEST(SchedulerTest, ARightTokenAfterAWrongGuessDoesNotCount) {
  Scheduler scheduler(WithDrafts(3));
  AddPrompt(scheduler, 1, {5, 6, 7, 8, 5});
  Step(scheduler, 6);
  scheduler.Schedule();
  EXPECT_THAT(scheduler.Commit(Decided({4, 8, 5, 1})), ElementsAre(true, false, false, false));
  EXPECT_THAT(scheduler.sequence(1).tokens, ElementsAre(5, 6, 7, 8, 5, 6, 4));
}

TEST(SchedulerTest, ARowAfterAWrongGuessMayBeNaN) {
  Scheduler scheduler(WithDrafts(3));
  AddPrompt(scheduler, 1, {5, 6, 7, 8, 5});
  Step(scheduler, 6);
  scheduler.Schedule();
  std::vector<RowOutcome> outcomes = Decided({4, 8, 5, 1});
  for (size_t row = 1; row < 4; ++row) outcomes[row].finite = false;
  EXPECT_THAT(scheduler.Commit(outcomes), ElementsAre(true, false, false, false));
  EXPECT_THAT(scheduler.sequence(1).tokens, ElementsAre(5, 6, 7, 8, 5, 6, 4));
}

TEST(SchedulerTest, GuessesKeepToTheSequencesEndAndToFreeRows) {
  Scheduler scheduler(WithDrafts(7));
  AddPrompt(scheduler, 1, {5, 6, 7, 8, 5}, 0, std::nullopt, 8);  // 6 known, 1 decided: 1 guess
  Step(scheduler, 6);
  EXPECT_EQ(scheduler.Schedule().draft_tokens, 1u);
  scheduler.Commit(Decided({7, 8}));
  EXPECT_EQ(scheduler.sequence(1).tokens.size(), 8u);
  scheduler.Finish(1);
  // Three that decode share the five rows that are left of eight.
  for (SequenceId id = 2; id < 5; ++id) AddPrompt(scheduler, id, {5, 6, 7, 8, 5});
  Step(scheduler, 6);
  Step(scheduler, 6);
  const Plan& plan = scheduler.Schedule();
  EXPECT_LE(plan.batch.token_ids.size(), kFreeRows);
  EXPECT_EQ(plan.decode_tokens, 3 + plan.draft_tokens);
}

TEST(SchedulerTest, AGuessTakesNoBlockFromAnybody) {
  SchedulerOptions options = WithDrafts(3);
  options.blocks = 2;  // of 4
  Scheduler scheduler(options);
  AddPrompt(scheduler, 1, {5, 6, 5, 6, 5, 6});
  Step(scheduler, 5);
  EXPECT_EQ(scheduler.Schedule().draft_tokens, 1u);  // positions 6 and 7, then the pool is full
  EXPECT_EQ(scheduler.sequence(1).blocks.size(), 2u);
}

}  // namespace
}  // namespace normserve::scheduler
