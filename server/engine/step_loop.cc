// SPDX-License-Identifier: Apache-2.0
#include "engine/step_loop.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/admission.h"

namespace normserve::engine {
namespace {

scheduler::SchedulerOptions SchedulerOptionsOf(const EngineOptions& options,
                                               const RunnerInfo& info) {
  scheduler::SchedulerOptions out;
  out.max_step_tokens = options.max_step_tokens;
  out.max_mixed_step_tokens = options.max_mixed_step_tokens;
  out.max_running = options.max_running;
  out.blocks = info.blocks;
  out.block_size = info.block_size;
  out.prefix_cache = options.prefix_cache;
  out.draft_tokens = options.draft_tokens;
  return out;
}

Terminal TerminalOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kMaxNewTokens:
    case FinishReason::kContextLimit:
      return Terminal::kLength;
    case FinishReason::kNone:
      return Terminal::kScored;
    default:
      return Terminal::kStop;
  }
}

// Memory that ran out is the caller's to try again; anything else is our fault.
absl::Status StepFailure(const absl::Status& why) {
  const std::string text = absl::StrCat("the model failed on this request's batch: ", why.message());
  return absl::IsResourceExhausted(why) ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

Terminal TerminalOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return Terminal::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Terminal::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return Terminal::kRejected;
    case absl::StatusCode::kInvalidArgument:
      return Terminal::kInvalid;
    case absl::StatusCode::kUnavailable:
      return Terminal::kShutdown;
    default:
      return Terminal::kInternal;
  }
}

StepLoop::StepLoop(const EngineOptions& options, std::unique_ptr<Runner> runner,
                   const text::Tokenizer* tokenizer, EngineObserver* observer,
                   const base::Clock* clock, Inbox* inbox)
    : runner_(std::move(runner)),
      tokenizer_(tokenizer),
      clock_(clock),
      inbox_(inbox),
      scheduler_(SchedulerOptionsOf(options, runner_->info())),
      statistics_(observer) {}

void StepLoop::Run() {
  EngineObserver::Step last;
  for (bool idle = false;;) {
    const scheduler::Plan& plan = scheduler_.Schedule();
    idle = plan.batch.empty();
    const absl::Status started = idle ? absl::OkStatus() : StartStep(plan);
    // What the step before made is handed out while a device works on this one.
    PublishAndDeliver(last);
    last = idle ? EngineObserver::Step() : FinishStep(plan, started);
    Inbox::Mail mail = inbox_->Take(
        /*wait=*/idle, deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first);
    const bool end_all = mail.end_all;
    const bool stop = mail.stop;
    Accept(std::move(mail));
    Expire();
    if (end_all) EndAll(ShuttingDown());
    if (stop) return PublishAndDeliver(last);
  }
}

void StepLoop::Accept(Inbox::Mail mail) {
  const uint32_t max_tokens = MaxSequenceTokens(runner_->info());
  for (Submission& submission : mail.submissions) {
    const uint64_t handle = submission.handle;
    auto generation = std::make_unique<Generation>(std::move(submission), tokenizer_, max_tokens);
    Generation& g = *generation;
    generations_.emplace(handle, std::move(generation));
    const Request& request = g.request();
    if (request.deadline != absl::InfiniteFuture()) deadlines_.emplace(request.deadline, handle);
    if (g.empty()) {
      End(g, Delta());
      continue;
    }
    scheduler_.Add(handle, g.TakePrompt(), request.priority, g.timeline().submitted,
                   request.score_from, g.max_tokens());
  }
  for (uint64_t handle : mail.cancels) EndWith(handle, absl::CancelledError("cancelled"));
}

void StepLoop::Expire() {
  if (deadlines_.empty()) return;
  const absl::Time now = clock_->Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    EndWith(deadlines_.begin()->second, absl::DeadlineExceededError("the call's deadline passed"));
  }
}

absl::Status StepLoop::StartStep(const scheduler::Plan& plan) {
  step_start_ = clock_->Now();
  StartAdmitted(plan);
  statistics_.Planned(plan);
  return runner_->Start(plan.batch, TasksOf(plan.batch));
}

EngineObserver::Step StepLoop::FinishStep(const scheduler::Plan& plan,
                                          const absl::Status& started) {
  EngineObserver::Step step;
  step.prefill_tokens = plan.prefill_tokens;
  step.decode_tokens = plan.decode_tokens;
  step.sequences = static_cast<uint32_t>(plan.sequences.size());
  absl::StatusOr<std::vector<RowResult>> results =
      started.ok() ? runner_->Finish() : absl::StatusOr<std::vector<RowResult>>(started);
  if (results.ok()) {
    const size_t rows = results->size(), held = Commit(plan.batch, *std::move(results));
    if (plan.draft_tokens > 0) {
      statistics_.Drafted(plan.draft_tokens, plan.draft_tokens - static_cast<uint32_t>(rows - held));
    }
  } else {
    const absl::Status status = StepFailure(results.status());
    for (uint64_t handle : plan.sequences) EndWith(handle, status);
  }
  step.recorded = runner_->recorded();
  step.seconds = std::max(0.0, absl::ToDoubleSeconds(clock_->Now() - step_start_));
  return step;
}

void StepLoop::StartAdmitted(const scheduler::Plan& plan) {
  for (const scheduler::Admission& admission : plan.admitted) {
    if (admission.resumed) continue;
    Generation& generation = *generations_.at(admission.id);
    generation.SetCachedTokens(admission.cached_tokens);
    generation.timeline().scheduled = clock_->Now();
    inbox_->LeftQueue(admission.prompt_tokens);
  }
}

const std::vector<RowTask>& StepLoop::TasksOf(const scheduler::Batch& batch) {
  tasks_.clear();
  for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
    const uint64_t handle = batch.logits_sequence[i];
    const uint32_t position = static_cast<uint32_t>(batch.positions[batch.logits_rows[i]]);
    tasks_.push_back(generations_.at(handle)->Task(scheduler_.sequence(handle).tokens, position));
  }
  return tasks_;
}

// Returns the number of rows that hold.
size_t StepLoop::Commit(const scheduler::Batch& batch, std::vector<RowResult> results) {
  outcomes_.clear();
  for (const RowResult& result : results) outcomes_.push_back({result.token.id, result.finite});
  const std::vector<bool>& holds = scheduler_.Commit(outcomes_);
  const absl::Time now = clock_->Now();
  size_t held = 0;
  for (size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    const uint64_t handle = batch.logits_sequence[begin];
    size_t kept = begin;
    for (; end < results.size() && batch.logits_sequence[end] == handle; ++end) kept += holds[end];
    CommitSequence(*generations_.at(handle), absl::MakeSpan(results).subspan(begin, kept - begin), now);
    held += kept - begin;
  }
  return held;
}

void StepLoop::CommitSequence(Generation& generation, absl::Span<RowResult> rows, absl::Time now) {
  Delta delta;
  for (RowResult& row : rows) {
    if (!row.finite) {
      statistics_.NonFiniteRow();
      // What was decided before it is the caller's, as it would be without guesses.
      if (!generation.scoring() && !delta.tokens.empty()) Deliver(generation, std::move(delta), now);
      EndWith(generation.handle(),
              absl::InternalError("the model produced NaN or Inf for this request"));
      return;
    }
    delta.finished = generation.Append(std::move(row.token), delta);
    if (delta.finished) break;  // guesses may go on past the end
  }
  Deliver(generation, std::move(delta), now);
}

void StepLoop::Deliver(Generation& generation, Delta delta, absl::Time now) {
  if (!generation.scoring()) {
    statistics_.Generated(static_cast<uint32_t>(delta.tokens.size()), now, generation.timeline());
  }
  if (delta.finished) {
    End(generation, std::move(delta));
  } else {
    outgoing_.emplace_back(generation.outbox(), std::move(delta));
  }
}

void StepLoop::End(Generation& generation, Delta delta) {
  const uint64_t handle = generation.handle();
  const Terminal terminal =
      delta.status.ok() ? TerminalOf(delta.finish_reason) : TerminalOf(delta.status);
  delta.finished = true;
  delta.usage = generation.usage();
  const Timeline& timeline = generation.timeline();
  if (timeline.scheduled == absl::InfinitePast()) {
    inbox_->LeftQueue(delta.usage.prompt_tokens);
  } else {
    delta.queue_seconds =
        std::max(0.0, absl::ToDoubleSeconds(timeline.scheduled - timeline.submitted));
  }
  scheduler_.Finish(handle);
  deadlines_.erase({generation.request().deadline, handle});
  statistics_.Ended(generation, terminal, clock_->Now());
  inbox_->Ended(handle);
  outgoing_.emplace_back(generation.outbox(), std::move(delta));
  generations_.erase(handle);
}

void StepLoop::EndWith(uint64_t handle, const absl::Status& status) {
  auto found = generations_.find(handle);
  if (found == generations_.end()) return;
  Delta delta;
  delta.status = status;
  End(*found->second, std::move(delta));
}

void StepLoop::EndAll(const absl::Status& status) {
  std::vector<uint64_t> handles;
  for (const auto& [handle, generation] : generations_) handles.push_back(handle);
  std::sort(handles.begin(), handles.end());
  for (uint64_t handle : handles) EndWith(handle, status);
}

// Publishes first: whoever sees a request's end finds it in the metrics.
void StepLoop::PublishAndDeliver(const EngineObserver::Step& step) {
  statistics_.StepDone(step, scheduler_, inbox_->live());
  for (auto& [outbox, delta] : outgoing_) outbox->Push(std::move(delta));
  outgoing_.clear();
  inbox_->Delivered();
}

}  // namespace normserve::engine
