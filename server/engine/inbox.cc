// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace normserve::engine {

Inbox::Inbox(uint32_t max_waiting, uint64_t max_waiting_tokens, const base::Clock* clock)
    : max_waiting_(max_waiting), max_waiting_tokens_(max_waiting_tokens), clock_(clock) {}

absl::Status Inbox::Admissible(uint64_t prompt_tokens) const {
  if (draining_) return absl::UnavailableError("the server is draining: send this elsewhere");
  if (waiting_ >= max_waiting_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue is full: ", waiting_, " requests wait, max_waiting is ", max_waiting_));
  }
  if (waiting_ > 0 && waiting_tokens_ + prompt_tokens > max_waiting_tokens_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue is full: ", waiting_tokens_, " prompt tokens wait, this request has ",
                     prompt_tokens, ", max_waiting_tokens is ", max_waiting_tokens_));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Inbox::Post(Request request, std::shared_ptr<Outbox> outbox) {
  const absl::Time now = clock_->Now();
  std::lock_guard<std::mutex> lock(mutex_);
  NS_RETURN_IF_ERROR(Admissible(request.prompt.size()));
  ++waiting_;
  waiting_tokens_ += request.prompt.size();
  const uint64_t handle = ++last_handle_;
  live_.emplace(handle, false);
  mail_.submissions.push_back({handle, std::move(request), std::move(outbox), now});
  arrived_.notify_one();
  return handle;
}

void Inbox::Cancel(uint64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = live_.find(handle);
  if (found == live_.end() || std::exchange(found->second, true)) return;
  mail_.cancels.push_back(handle);
  arrived_.notify_one();
}

void Inbox::Drain(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  draining_ = true;
  auto quiet = [this] { return live_.empty() && undelivered_ == 0; };
  while (!quiet() && clock_->Now() < deadline) clock_->WaitUntil(lock, quiet_, deadline);
  if (quiet()) return;
  mail_.end_all = true;
  arrived_.notify_one();
  quiet_.wait(lock, quiet);
}

void Inbox::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
  mail_.end_all = true;
  mail_.stop = true;
  arrived_.notify_one();
}

Inbox::Mail Inbox::Take(bool wait, absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto empty = [this] {
    return mail_.submissions.empty() && mail_.cancels.empty() && !mail_.end_all && !mail_.stop;
  };
  while (wait && empty() && clock_->Now() < deadline) {
    clock_->WaitUntil(lock, arrived_, deadline);
  }
  return std::exchange(mail_, Mail());
}

void Inbox::LeftQueue(uint32_t prompt_tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  --waiting_;
  waiting_tokens_ -= prompt_tokens;
}

void Inbox::Ended(uint64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  live_.erase(handle);
  ++undelivered_;
}

void Inbox::Delivered() {
  std::lock_guard<std::mutex> lock(mutex_);
  undelivered_ = 0;
  if (live_.empty()) quiet_.notify_all();
}

uint32_t Inbox::live() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(live_.size());
}

}  // namespace normserve::engine
