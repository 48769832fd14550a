// SPDX-License-Identifier: Apache-2.0
// Random workloads on tiny pools. A simulated KV cache holds what each slot was last given; a row's
// token is a function of what its sequence reads through its block table, so that a block that is
// shared, freed or reused wrongly changes a token.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "scheduler/scheduler.h"

namespace normserve::scheduler {
namespace {

uint32_t NextToken(const std::vector<uint32_t>& history) {
  uint64_t h = 1;
  for (uint32_t t : history) h = (h ^ t) * 0x9E3779B97F4A7C15u + (h >> 29);
  return static_cast<uint32_t>(h >> 40) % 3;  // few tokens: many equal prefixes
}

struct Job {
  std::vector<uint32_t> prompt;
  uint32_t new_tokens = 0;
  std::optional<uint32_t> score_from;
  uint32_t scored = 0;
  uint64_t arrived_step = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const SchedulerOptions& options)
      : random_(seed),
        options_(options),
        scheduler_(options),
        cache_(options.blocks * options.block_size, 999) {}

  void Run(int jobs) {
    const uint32_t pool_tokens = options_.blocks * options_.block_size;
    int added = 0;
    for (uint64_t step = 0; added < jobs || !live_.empty(); ++step) {
      ASSERT_LT(step, 200000u) << "starved";
      while (added < jobs && random_() % 3 == 0) AddJob(++added, pool_tokens, step);
      if (!live_.empty() && random_() % 40 == 0)
        Drop(std::next(live_.begin(), random_() % live_.size())->first);
      StepOnce();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler_.pool().used(), 0u);
    EXPECT_EQ(scheduler_.running() + scheduler_.waiting(), 0u);
  }

  uint32_t preemptions() const { return preemptions_; }
  uint32_t hits() const { return hits_; }
  uint32_t drafts() const { return drafts_; }
  uint32_t wrong() const { return wrong_; }

 private:
  void AddJob(SequenceId id, uint32_t pool_tokens, uint64_t step) {
    Job job;
    job.prompt.resize(1 + random_() % (pool_tokens / 2));
    for (uint32_t& t : job.prompt) t = random_() % 8 == 0 ? random_() % 3 : 0;
    job.new_tokens = 1 + random_() % (pool_tokens - job.prompt.size());
    if (job.prompt.size() > 1 && random_() % 4 == 0) {
      job.score_from = 1 + random_() % (job.prompt.size() - 1);
    }
    job.arrived_step = step;
    scheduler_.Add(id, job.prompt, static_cast<int32_t>(random_() % 5), absl::FromUnixSeconds(step),
                   job.score_from,
                   static_cast<uint32_t>(job.prompt.size()) + job.new_tokens);
    live_.emplace(id, std::move(job));
  }

  void Drop(SequenceId id) {
    scheduler_.Finish(id);
    live_.erase(id);
  }

  void StepOnce() {
    const Plan& plan = scheduler_.Schedule();
    const Batch& b = plan.batch;
    ASSERT_EQ(b.empty(), live_.empty());
    ASSERT_LE(b.token_ids.size(), options_.max_step_tokens);
    ASSERT_LE(scheduler_.running(), options_.max_running);
    preemptions_ += plan.preempted;
    for (const Admission& a : plan.admitted) hits_ += a.cached_tokens > 0;
    std::set<int32_t> written;
    for (size_t i = 0; i < b.token_ids.size(); ++i) {
      ASSERT_TRUE(written.insert(b.slots[i]).second) << "two rows write one slot";
      cache_[b.slots[i]] = b.token_ids[i];
    }
    std::vector<RowOutcome> outcomes;
    for (int32_t row : b.logits_rows) outcomes.push_back({NextToken(Read(b, row)), true});
    const std::vector<bool> holds = scheduler_.Commit(outcomes);
    ASSERT_TRUE(scheduler_.Check().ok()) << scheduler_.Check();
    drafts_ += plan.draft_tokens;
    for (const bool row : holds) wrong_ += row ? 0 : 1;
    for (SequenceId id : std::set<SequenceId>(b.logits_sequence.begin(), b.logits_sequence.end())) {
      Judge(id, std::count(b.logits_sequence.begin(), b.logits_sequence.end(), id));
    }
  }

  std::vector<uint32_t> Read(const Batch& b, int32_t row) const {
    std::vector<uint32_t> history;
    const int32_t* table = &b.block_tables[b.token_sequence[row] * b.max_blocks];
    const int32_t size = static_cast<int32_t>(options_.block_size);
    for (int32_t p = 0; p <= b.positions[row]; ++p) {
      history.push_back(cache_[table[p / size] * size + p % size]);
    }
    return history;
  }

  // What the sequence has must be what it would have alone.
  void Judge(SequenceId id, size_t rows) {
    Job& job = live_.at(id);
    if (job.score_from) {
      job.scored += rows;
      ASSERT_LE(job.scored, job.prompt.size() - *job.score_from);
      if (job.scored == job.prompt.size() - *job.score_from) Drop(id);
      return;
    }
    std::vector<uint32_t> tokens = job.prompt;
    const std::vector<uint32_t>& got = scheduler_.sequence(id).tokens;
    while (tokens.size() < got.size()) tokens.push_back(NextToken(tokens));
    ASSERT_EQ(tokens, got) << "sequence " << id;
    ASSERT_LE(got.size(), job.prompt.size() + job.new_tokens);
    if (got.size() == job.prompt.size() + job.new_tokens) Drop(id);
  }

  std::mt19937_64 random_;
  const SchedulerOptions options_;
  Scheduler scheduler_;
  std::vector<uint32_t> cache_;
  std::map<SequenceId, Job> live_;
  uint32_t preemptions_ = 0;
  uint32_t hits_ = 0;
  uint32_t drafts_ = 0;
  uint32_t wrong_ = 0;
};

TEST(SchedulerPropertyTest, EveryScheduleGivesTheTokensOfARunAlone) {
  uint32_t preemptions = 0, hits = 0, drafts = 0, wrong = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    SchedulerOptions options;
    options.block_size = 1 + random() % 5;
    options.blocks = 6 + random() % 14;
    options.max_step_tokens = 1 + random() % 24;
    options.max_mixed_step_tokens = seed % 5 < 2 ? 1 + random() % 24 : 0;
    options.max_running = 1 + random() % 8;
    options.prefix_cache = seed % 3 != 0;
    options.draft_tokens = seed % 2 == 0 ? 0 : 1 + random() % 7;
    SCOPED_TRACE(seed);
    Simulation simulation(seed, options);
    simulation.Run(60);
    if (HasFatalFailure()) return;
    preemptions += simulation.preemptions();
    hits += simulation.hits();
    drafts += simulation.drafts();
    wrong += simulation.wrong();
  }
  // Else the runs above would prove little.
  EXPECT_GT(preemptions, 100u);
  EXPECT_GT(hits, 100u);
  EXPECT_GT(wrong, 100u);
  EXPECT_GT(drafts - wrong, 100u);
}

// A stream of high-priority arrivals cannot hold a low one back for longer than its points are
// worth.
TEST(SchedulerPropertyTest, LowPriorityIsNotStarvedByAStreamOfHigherOnes) {
  SchedulerOptions options;
  options.blocks = 8;
  options.block_size = 4;
  options.max_running = 1;
  Scheduler scheduler(options);
  scheduler.Add(1, {1, 2}, -100, absl::FromUnixSeconds(0), std::nullopt, 3);
  for (SequenceId id = 2; id < 1000; ++id) {
    scheduler.Add(id, {1, 2}, 100, absl::FromUnixSeconds(id), std::nullopt, 3);
    const Plan& plan = scheduler.Schedule();
    scheduler.Commit(std::vector<RowOutcome>(plan.batch.logits_rows.size()));
    const SequenceId served = plan.sequences.at(0);
    scheduler.Finish(served);
    if (served == 1) {
      EXPECT_LE(id, 202u);  // 200 points of priority, a second each
      return;
    }
  }
  FAIL() << "starved";
}

}  // namespace
}  // namespace normserve::scheduler
