// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace normserve::base {
namespace {

// A far deadline would overflow the system clock's range; waking once a day costs nothing.
constexpr absl::Duration kLongestWait = absl::Hours(24);

}  // namespace

absl::Time SystemClock::Now() const { return absl::Now(); }

void SystemClock::WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                            absl::Time deadline) const {
  if (deadline == absl::InfiniteFuture()) {
    changed.wait(lock);
    return;
  }
  changed.wait_until(lock, absl::ToChronoTime(std::min(deadline, absl::Now() + kLongestWait)));
}

}  // namespace normserve::base
