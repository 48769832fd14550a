// SPDX-License-Identifier: Apache-2.0
// A clock that moves only when a test says so.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"

namespace normserve::base {

// Any thread. Whoever waits on it must have returned before it is destroyed.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch() + absl::Hours(1)) : now_(start) {}

  absl::Time Now() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                 absl::Time deadline) const override {
    const Waiter waiter{lock.mutex(), &changed};
    {
      std::lock_guard<std::mutex> mine(mutex_);
      if (now_ >= deadline) return;
      waiters_.push_back(waiter);
      came_.notify_all();
    }
    changed.wait(lock);
    std::lock_guard<std::mutex> mine(mutex_);
    waiters_.erase(std::find(waiters_.begin(), waiters_.end(), waiter));
  }

  void Advance(absl::Duration by) {
    std::vector<Waiter> waiters;
    {
      std::lock_guard<std::mutex> mine(mutex_);
      now_ += by;
      waiters = waiters_;
    }
    for (const Waiter& waiter : waiters) {
      // Whoever holds this mutex and is about to wait has not seen the new time.
      std::lock_guard<std::mutex> theirs(*waiter.first);
      waiter.second->notify_all();
    }
  }

  // Returns once somebody waits.
  void AwaitWaiter() const {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [this] { return !waiters_.empty(); });
  }

 private:
  using Waiter = std::pair<std::mutex*, std::condition_variable*>;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  mutable std::vector<Waiter> waiters_;
  absl::Time now_;
};

}  // namespace normserve::base
