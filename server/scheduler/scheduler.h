// SPDX-License-Identifier: Apache-2.0
// Decides what each engine step computes: continuous batching under a token budget, chunked
// prefill, prefix reuse, and preemption by recompute. Pure host logic: no torch, no clock, no
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batch.h"
#include "scheduler/block_pool.h"
#include "scheduler/sequence.h"

namespace normserve::scheduler {

struct SchedulerOptions {
  uint32_t max_step_tokens = 512;
  // Most tokens of a step in which a sequence decodes; 0: max_step_tokens. Decode rows are never held
  // back, and kLeastPrefill prompt tokens always may come along.
  uint32_t max_mixed_step_tokens = 0;
  uint32_t max_running =
      64;  // at most max_step_tokens are used, so that each can decode every step
  uint32_t blocks = 0;
  uint32_t block_size = 0;
  bool prefix_cache = true;
  // Most guesses per sequence and step that are computed along with its next token; 0: none.
  uint32_t draft_tokens = 0;
};

// Rows of one step up to which guesses are added: where the weights must be read anyway, few rows cost
// little more than one.
inline constexpr uint32_t kFreeRows = 8;

// Prompts go on whatever decodes.
inline constexpr uint32_t kLeastPrefill = 8;

// A sequence that left the queue.
struct Admission {
  SequenceId id = 0;
  bool resumed = false;  // after a preemption
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // found by prefix, of prompt and (when resumed) generated tokens
};

// One step's decisions.
struct Plan {
  Batch batch;
  std::vector<SequenceId> sequences;  // [batch.sequences], in the order of the batch
  std::vector<Admission> admitted;
  uint32_t preempted = 0;
  uint32_t prompt_tokens = 0;   // prompt tokens computed for the first time
  uint32_t prefill_tokens = 0;  // prompt tokens and recomputed ones
  uint32_t decode_tokens = 0;   // guesses included
  uint32_t draft_tokens = 0;    // guesses
};

// What the runner made of one logits row.
struct RowOutcome {
  uint32_t token = 0;  // appended when the sequence generates
  bool finite = true;
};

// Per step: Schedule, then Commit if the batch ran, then Finish for what ended; Add and Finish at
// any other time, but not between Schedule and Commit. Used by the engine thread.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Queues a sequence. `id`s grow; `tokens` is not empty and fits the pool by itself, also after
  // growing. Larger `priority` goes first, see kWaitingPerPriorityPoint. With `score_from`, rows
  // are wanted for each token from there on (1 <= score_from < tokens.size()) and nothing is
  // generated. `max_tokens`: the most that prompt and generated tokens will ever be.
  void Add(SequenceId id, std::vector<uint32_t> tokens, int32_t priority, absl::Time arrival,
           std::optional<uint32_t> score_from, uint32_t max_tokens);

  // Decode rows first, then prefill chunks, then the head of the queue. With sequences present, the
  // batch is never empty: the first-ranked running one can always take the blocks of the others.
  const Plan& Schedule();

  // `outcomes` [batch.logits_rows.size()], same order. Blocks become reusable by prefix here, when
  // a finite row has attended to all of them; those of a sequence with a non-finite row never
  // (again). Returns, per row, whether it holds: a row computed from a guess does when the row before it
  // holds and decided just that token, any other row always. Outcomes of the others mean nothing.
  const std::vector<bool>& Commit(absl::Span<const RowOutcome> outcomes);

  // Forgets a sequence, in whatever state, and frees its blocks.
  void Finish(SequenceId id);

  const Sequence& sequence(SequenceId id) const { return *sequences_.at(id); }
  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  const BlockPool& pool() const { return pool_; }

  // For tests: blocks are owned exactly as the sequences say.
  absl::Status Check() const;

 private:
  // Order of the queue: preempted ones in front, then by rank.
  using QueueKey = std::tuple<bool, absl::Time, SequenceId>;
  static QueueKey KeyOf(const Sequence& s) { return {!s.preempted, s.rank, s.id}; }

  uint32_t BlocksFor(uint32_t tokens) const;
  void LimitPrefill();
  uint32_t DemandOfRunning() const;
  void Reserve(Sequence& s);
  bool TryAdmit(Sequence& s);
  void AddDrafts();
  void AddDrafts(Sequence& s, uint32_t count);
  void Preempt(Sequence& s);
  void ReleaseBlocks(Sequence& s);
  void PublishBlocks(Sequence& s);
  void FillPlan();

  const SchedulerOptions options_;
  BlockPool pool_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::set<QueueKey> waiting_;
  std::vector<Sequence*> running_;  // by rank
  std::vector<Sequence*> step_;     // those of the current batch, in its order
  uint32_t budget_ = 0;             // tokens left in the current step
  Plan plan_;
  std::vector<bool> holds_;         // of the last Commit
};

}  // namespace normserve::scheduler
