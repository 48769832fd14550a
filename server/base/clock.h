// SPDX-License-Identifier: Apache-2.0
// Time as a dependency, so that deadlines can be tested without waiting for them.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace normserve::base {

// Any thread may call any method.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Releases `lock` and waits until `changed` is notified or `deadline` is reached; may return
  // early, so callers check their condition again.
  virtual void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                         absl::Time deadline) const = 0;
};

// The machine's wall clock (gRPC deadlines are wall-clock times).
class SystemClock final : public Clock {
 public:
  absl::Time Now() const override;
  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                 absl::Time deadline) const override;
};

}  // namespace normserve::base
