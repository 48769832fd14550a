// SPDX-License-Identifier: Apache-2.0
// See load_run.h.
#include "client/load_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace normserve::client {
namespace {

constexpr int64_t kProgressNs = 100'000'000;

int64_t ToNs(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

LoadRun::LoadRun(ConnectionOptions connection, LoadPlan plan,
                 const std::vector<std::unique_ptr<Stub>>& stubs,
                 const std::vector<v1::GenerateRequest>& requests)
    : connection_(std::move(connection)), plan_(plan), stubs_(stubs), requests_(requests) {}

absl::StatusOr<LoadOutcome> LoadRun::Run(const OnProgress& on_progress) {
  if (plan_.warmup > 0) {
    const LoadPlan measured = plan_;
    plan_.rate_per_s.reset();
    plan_.concurrency = std::max(1u, measured.concurrency);
    plan_.requests = measured.warmup;
    plan_.duration_s = 0;
    RunLoop([](const Progress&) {});
    for (const CallRecord& record : outcome_.records) {
      if (!record.status.ok()) {
        return absl::Status(record.status.code(),
                            absl::StrCat("a warm-up request failed: ", record.status.message()));
      }
    }
    plan_ = measured;
  }
  RunLoop(on_progress);
  return std::move(outcome_);
}

void LoadRun::RunLoop(const OnProgress& on_progress) {
  Lock lock(mutex_);
  outcome_ = LoadOutcome();
  sent_ = 0;
  output_tokens_ = 0;
  start_ns_ = NowNs();
  outcome_.start_ns = start_ns_;
  arrivals_.reset();
  workers_.reset();
  if (plan_.rate_per_s) {
    arrivals_.emplace(plan_.arrival, *plan_.rate_per_s, plan_.seed);
  } else {
    workers_.emplace(plan_.concurrency, plan_.seed);
  }
  while (!stop_) {
    const int64_t now = NowNs();
    const std::optional<int64_t> due = NextSendNs(now);
    if (!due) break;
    if (*due <= now) {
      Send(&lock, arrivals_ ? *due : 0);
      continue;
    }
    WaitUntil(&lock, std::min(*due, EndNs()), on_progress);
  }
  outcome_.interrupted = stop_;
  CountUnsent(NowNs());
  Drain(&lock, on_progress);
  outcome_.seconds = static_cast<double>(NowNs() - start_ns_) / 1e9;
}

int64_t LoadRun::EndNs() const {
  return plan_.duration_s > 0 ? start_ns_ + ToNs(plan_.duration_s) : INT64_MAX;
}

std::optional<int64_t> LoadRun::NextSendNs(int64_t now_ns) const {
  if (plan_.requests > 0 && sent_ >= plan_.requests) return std::nullopt;
  if (now_ns >= EndNs()) return std::nullopt;
  if (workers_) return workers_->NextSendNs();
  const int64_t due = start_ns_ + arrivals_->next_ns();
  if (due >= EndNs()) return std::nullopt;
  const bool has_place = plan_.concurrency == 0 || in_flight_ < plan_.concurrency;
  return has_place ? due : INT64_MAX;
}

void LoadRun::Send(Lock* lock, int64_t intended_ns) {
  ++sent_;
  if (arrivals_) arrivals_->Advance();
  const uint32_t refusals = workers_ ? workers_->Take() : 0;
  const uint64_t number = next_request_ % requests_.size();
  const v1::GenerateRequest* request = &requests_[number];
  Stub* stub = stubs_[next_request_ % stubs_.size()].get();
  ++next_request_;
  auto* call = new StreamCall(connection_, number, intended_ns, refusals, this);
  active_.insert(call);
  ++in_flight_;
  // gRPC may call back before Start returns.
  lock->unlock();
  call->Start(stub, request);
  lock->lock();
}

void LoadRun::CallEnding(StreamCall* call) {
  const Lock lock(mutex_);
  active_.erase(call);
}

void LoadRun::CallEnded(CallRecord record) {
  // Notified under the lock: once it is free and nothing in flight, Run may return and destroy
  // this.
  const Lock lock(mutex_);
  --in_flight_;
  if (workers_) workers_->Release(record.refusals, record.status.code(), record.end_ns);
  output_tokens_ += record.output_tokens;
  outcome_.records.push_back(std::move(record));
  changed_.notify_one();
}

void LoadRun::WaitUntil(Lock* lock, int64_t wake_ns, const OnProgress& on_progress) {
  const int64_t now = NowNs();
  const int64_t wait_ns = std::min(wake_ns - now, kProgressNs);
  if (wait_ns > 0) changed_.wait_for(*lock, std::chrono::nanoseconds(wait_ns));
  const Progress progress = CurrentProgress(NowNs());
  // Without the lock: the callback may be slow, or call Stop.
  lock->unlock();
  on_progress(progress);
  lock->lock();
}

void LoadRun::Drain(Lock* lock, const OnProgress& on_progress) {
  const int64_t end = NowNs() + ToNs(plan_.drain_s);
  while (in_flight_ > 0 && !stop_ && NowNs() < end) WaitUntil(lock, end, on_progress);
  for (StreamCall* call : active_) call->Cancel();
  while (in_flight_ > 0) WaitUntil(lock, INT64_MAX, on_progress);
}

void LoadRun::CountUnsent(int64_t now_ns) {
  outcome_.unsent = 0;
  if (arrivals_) {
    // What was due by now (or by the end of the run, if that came first) and still stands in line.
    const int64_t end = std::min(now_ns, EndNs());
    Arrivals rest = *arrivals_;
    while (start_ns_ + rest.next_ns() < end &&
           (plan_.requests == 0 || sent_ + outcome_.unsent < plan_.requests)) {
      ++outcome_.unsent;
      rest.Advance();
    }
  }
  outcome_.offered = sent_ + outcome_.unsent;
}

LoadRun::Progress LoadRun::CurrentProgress(int64_t now_ns) const {
  Progress progress;
  progress.ended = outcome_.records.size();
  progress.in_flight = in_flight_;
  progress.output_tokens = output_tokens_;
  if (plan_.requests > 0) {
    progress.fraction = static_cast<double>(progress.ended) / static_cast<double>(plan_.requests);
  }
  if (plan_.duration_s > 0) {
    progress.fraction = std::max(progress.fraction,
                                 static_cast<double>(now_ns - start_ns_) / 1e9 / plan_.duration_s);
  }
  progress.fraction = std::min(progress.fraction, 1.0);
  return progress;
}

void LoadRun::Stop() {
  const Lock lock(mutex_);
  stop_ = true;
  changed_.notify_one();
}

}  // namespace normserve::client
