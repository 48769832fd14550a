// SPDX-License-Identifier: Apache-2.0
// The step loop. What a request is made of is in generation.cc, who comes in in inbox.cc and
// admission.cc, who runs in scheduler/.
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/admission.h"
#include "engine/generation.h"
#include "engine/inbox.h"
#include "engine/statistics.h"
#include "scheduler/scheduler.h"

namespace normserve::engine {
namespace {

scheduler::SchedulerOptions SchedulerOptionsOf(const EngineOptions& options,
                                               const RunnerInfo& info) {
  scheduler::SchedulerOptions out;
  out.max_step_tokens = options.max_step_tokens;
  out.max_running = options.max_running;
  out.blocks = info.blocks;
  out.block_size = info.block_size;
  out.prefix_cache = options.prefix_cache;
  return out;
}

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

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

struct Engine::Impl {
  Impl(EngineOptions options, std::unique_ptr<Runner> runner_in, const text::Tokenizer* tokenizer_in,
       EngineObserver* observer_in, const base::Clock* clock_in)
      : runner(std::move(runner_in)),
        tokenizer(tokenizer_in),
        observer(observer_in),
        clock(clock_in != nullptr ? clock_in : &system_clock),
        inbox(options.max_waiting, options.max_waiting_tokens, clock),
        scheduler(SchedulerOptionsOf(options, runner->info())),
        statistics(observer_in) {}

  void Loop();
  void Accept(Inbox::Mail mail);
  void Expire();
  EngineObserver::Step RunStep(const scheduler::Plan& plan);
  void StartAdmitted(const scheduler::Plan& plan);
  const std::vector<RowTask>& TasksOf(const scheduler::Batch& batch);
  void Commit(const scheduler::Batch& batch, std::vector<RowResult> results);
  void CommitSequence(Generation& generation, absl::Span<RowResult> rows, absl::Time now);
  void End(Generation& generation, Delta delta);
  void EndWith(uint64_t handle, const absl::Status& status);
  void EndAll(const absl::Status& status);
  void PublishAndDeliver(const EngineObserver::Step& step);

  const base::SystemClock system_clock;
  const std::unique_ptr<Runner> runner;
  const text::Tokenizer* const tokenizer;
  EngineObserver* const observer;
  const base::Clock* const clock;
  Inbox inbox;

  // The engine thread's own, from here on.
  scheduler::Scheduler scheduler;
  const Statistics statistics;
  std::unordered_map<uint64_t, std::unique_ptr<Generation>> generations;  // by handle
  std::set<std::pair<absl::Time, uint64_t>> deadlines;                    // of those, if finite
  std::vector<std::pair<std::shared_ptr<Outbox>, Delta>> outgoing;        // this step's
  std::vector<RowTask> tasks;                                             // scratch
  std::vector<scheduler::RowOutcome> outcomes;                            // scratch

  std::thread thread;
};

void Engine::Impl::Loop() {
  PublishAndDeliver(EngineObserver::Step());
  for (bool idle = true;;) {
    Inbox::Mail mail = inbox.Take(
        /*wait=*/idle, deadlines.empty() ? absl::InfiniteFuture() : deadlines.begin()->first);
    const bool end_all = mail.end_all;
    const bool stop = mail.stop;
    Accept(std::move(mail));
    Expire();
    if (end_all) EndAll(ShuttingDown());
    if (!outgoing.empty()) PublishAndDeliver(EngineObserver::Step());
    if (stop) return;
    const scheduler::Plan& plan = scheduler.Schedule();
    idle = plan.batch.empty();
    if (!idle) PublishAndDeliver(RunStep(plan));
  }
}

void Engine::Impl::Accept(Inbox::Mail mail) {
  const uint32_t max_tokens = MaxSequenceTokens(runner->info());
  for (Submission& submission : mail.submissions) {
    const uint64_t handle = submission.handle;
    auto generation = std::make_unique<Generation>(std::move(submission), tokenizer, max_tokens);
    Generation& g = *generation;
    generations.emplace(handle, std::move(generation));
    const Request& request = g.request();
    if (request.deadline != absl::InfiniteFuture()) deadlines.emplace(request.deadline, handle);
    if (g.empty()) {
      End(g, Delta());
      continue;
    }
    scheduler.Add(handle, g.TakePrompt(), request.priority, g.timeline().submitted,
                  request.score_from);
  }
  for (uint64_t handle : mail.cancels) EndWith(handle, absl::CancelledError("cancelled"));
}

void Engine::Impl::Expire() {
  if (deadlines.empty()) return;
  const absl::Time now = clock->Now();
  while (!deadlines.empty() && deadlines.begin()->first <= now) {
    EndWith(deadlines.begin()->second, absl::DeadlineExceededError("the call's deadline passed"));
  }
}

EngineObserver::Step Engine::Impl::RunStep(const scheduler::Plan& plan) {
  const absl::Time start = clock->Now();
  EngineObserver::Step step;
  step.prefill_tokens = plan.prefill_tokens;
  step.decode_tokens = plan.decode_tokens;
  step.sequences = static_cast<uint32_t>(plan.sequences.size());
  StartAdmitted(plan);
  statistics.Planned(plan);
  absl::StatusOr<std::vector<RowResult>> results = runner->Run(plan.batch, TasksOf(plan.batch));
  if (results.ok()) {
    Commit(plan.batch, *std::move(results));
  } else {
    const absl::Status status = absl::InternalError(
        absl::StrCat("the model failed on this request's batch: ", results.status().message()));
    for (uint64_t handle : plan.sequences) EndWith(handle, status);
  }
  step.seconds = std::max(0.0, absl::ToDoubleSeconds(clock->Now() - start));
  return step;
}

void Engine::Impl::StartAdmitted(const scheduler::Plan& plan) {
  for (const scheduler::Admission& admission : plan.admitted) {
    if (admission.resumed) continue;
    Generation& generation = *generations.at(admission.id);
    generation.SetCachedTokens(admission.cached_tokens);
    generation.timeline().scheduled = clock->Now();
    inbox.LeftQueue(admission.prompt_tokens);
  }
}

const std::vector<RowTask>& Engine::Impl::TasksOf(const scheduler::Batch& batch) {
  tasks.clear();
  for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
    const uint64_t handle = batch.logits_sequence[i];
    const uint32_t position = static_cast<uint32_t>(batch.positions[batch.logits_rows[i]]);
    tasks.push_back(
        generations.at(handle)->Task(scheduler.sequence(handle).tokens, position));
  }
  return tasks;
}

void Engine::Impl::Commit(const scheduler::Batch& batch, std::vector<RowResult> results) {
  outcomes.clear();
  for (const RowResult& result : results) outcomes.push_back({result.token.id, result.finite});
  scheduler.Commit(outcomes);
  const absl::Time now = clock->Now();
  for (size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    const uint64_t handle = batch.logits_sequence[begin];
    while (end < results.size() && batch.logits_sequence[end] == handle) ++end;
    CommitSequence(*generations.at(handle),
                   absl::MakeSpan(results).subspan(begin, end - begin), now);
  }
}

void Engine::Impl::CommitSequence(Generation& generation, absl::Span<RowResult> rows,
                                  absl::Time now) {
  Delta delta;
  for (RowResult& row : rows) {
    if (!row.finite) {
      statistics.NonFiniteRow();
      EndWith(generation.handle(),
              absl::InternalError("the model produced NaN or Inf for this request"));
      return;
    }
    delta.finished = generation.Append(std::move(row.token), delta);
  }
  if (!generation.scoring()) statistics.Generated(1, now, generation.timeline());
  if (delta.finished) {
    End(generation, std::move(delta));
  } else {
    outgoing.emplace_back(generation.outbox(), std::move(delta));
  }
}

void Engine::Impl::End(Generation& generation, Delta delta) {
  const uint64_t handle = generation.handle();
  const Terminal terminal =
      delta.status.ok() ? TerminalOf(delta.finish_reason) : TerminalOf(delta.status);
  delta.finished = true;
  delta.usage = generation.usage();
  const Timeline& timeline = generation.timeline();
  if (timeline.scheduled == absl::InfinitePast()) {
    inbox.LeftQueue(delta.usage.prompt_tokens);
  } else {
    delta.queue_seconds =
        std::max(0.0, absl::ToDoubleSeconds(timeline.scheduled - timeline.submitted));
  }
  scheduler.Finish(handle);
  deadlines.erase({generation.request().deadline, handle});
  statistics.Ended(generation, terminal, clock->Now());
  inbox.Ended(handle);
  outgoing.emplace_back(generation.outbox(), std::move(delta));
  generations.erase(handle);
}

void Engine::Impl::EndWith(uint64_t handle, const absl::Status& status) {
  auto found = generations.find(handle);
  if (found == generations.end()) return;
  Delta delta;
  delta.status = status;
  End(*found->second, std::move(delta));
}

void Engine::Impl::EndAll(const absl::Status& status) {
  std::vector<uint64_t> handles;
  for (const auto& [handle, generation] : generations) handles.push_back(handle);
  std::sort(handles.begin(), handles.end());
  for (uint64_t handle : handles) EndWith(handle, status);
}

// Publishes first: whoever sees a request's end finds it in the metrics.
void Engine::Impl::PublishAndDeliver(const EngineObserver::Step& step) {
  statistics.StepDone(step, scheduler, inbox.live());
  for (auto& [outbox, delta] : outgoing) outbox->Push(std::move(delta));
  outgoing.clear();
  inbox.Delivered();
}

Engine::Engine(std::string name, EngineOptions options, std::unique_ptr<Runner> runner,
               const text::Tokenizer* tokenizer, EngineObserver* observer, const base::Clock* clock)
    : impl_(std::make_unique<Impl>(options, std::move(runner), tokenizer, observer, clock)) {
  impl_->thread = std::thread([this] { impl_->Loop(); });
  const std::string thread_name = ("eng:" + name).substr(0, 15);  // the kernel's limit
  pthread_setname_np(impl_->thread.native_handle(), thread_name.c_str());
}

Engine::~Engine() {
  impl_->inbox.Stop();
  impl_->thread.join();
}

const RunnerInfo& Engine::runner_info() const { return impl_->runner->info(); }

absl::StatusOr<Engine::Handle> Engine::Submit(Request request, std::shared_ptr<Outbox> outbox) {
  impl_->observer->RequestReceived();
  absl::Status status = CheckRequest(request, runner_info(), impl_->tokenizer != nullptr);
  if (status.ok()) {
    absl::StatusOr<Handle> handle = impl_->inbox.Post(std::move(request), std::move(outbox));
    if (handle.ok()) return handle;
    status = handle.status();
  }
  impl_->observer->RequestEnded(TerminalOf(status), EngineObserver::RequestTimes(), Usage());
  return status;
}

void Engine::Cancel(Handle handle) { impl_->inbox.Cancel(handle); }

void Engine::Drain(absl::Time deadline) { impl_->inbox.Drain(deadline); }

}  // namespace normserve::engine
