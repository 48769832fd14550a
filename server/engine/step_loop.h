// SPDX-License-Identifier: Apache-2.0
// The step loop: drain the inbox, schedule, start, publish and deliver the step before, finish, commit. What a request is made
// of is Generation's, who comes in is Inbox's and admission's, who runs is the scheduler's.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/inbox.h"
#include "engine/runner.h"
#include "engine/statistics.h"
#include "scheduler/scheduler.h"

namespace normserve::engine {

// Which terminal a status that is not ok counts as.
Terminal TerminalOf(const absl::Status& status);

// Everything that the engine thread owns. No locks inside.
class StepLoop {
 public:
  // `tokenizer` may be null; all pointers outlive this.
  StepLoop(const EngineOptions& options, std::unique_ptr<Runner> runner,
           const text::Tokenizer* tokenizer, EngineObserver* observer, const base::Clock* clock,
           Inbox* inbox);

  // On the engine thread; returns after Inbox::Stop, when every request has ended.
  void Run();

  // Any thread: fixed since construction.
  const RunnerInfo& runner_info() const { return runner_->info(); }

 private:
  void Accept(Inbox::Mail mail);
  void Expire();
  absl::Status StartStep(const scheduler::Plan& plan);
  EngineObserver::Step FinishStep(const scheduler::Plan& plan, const absl::Status& started);
  void StartAdmitted(const scheduler::Plan& plan);
  const std::vector<RowTask>& TasksOf(const scheduler::Batch& batch);
  size_t Commit(const scheduler::Batch& batch, std::vector<RowResult> results);
  void CommitSequence(Generation& generation, absl::Span<RowResult> rows, absl::Time now);
  void Deliver(Generation& generation, Delta delta, absl::Time now);
  void End(Generation& generation, Delta delta);
  void EndWith(uint64_t handle, const absl::Status& status);
  void EndAll(const absl::Status& status);
  void PublishAndDeliver(const EngineObserver::Step& step);

  const std::unique_ptr<Runner> runner_;
  const text::Tokenizer* const tokenizer_;
  const base::Clock* const clock_;
  Inbox* const inbox_;
  scheduler::Scheduler scheduler_;
  const Statistics statistics_;
  std::unordered_map<uint64_t, std::unique_ptr<Generation>> generations_;  // by handle
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;                    // of those, if finite
  std::vector<std::pair<std::shared_ptr<Outbox>, Delta>> outgoing_;        // this step's
  absl::Time step_start_;                                                  // of the step that runs
  std::vector<RowTask> tasks_;                                             // scratch
  std::vector<scheduler::RowOutcome> outcomes_;                            // scratch
};

}  // namespace normserve::engine
