// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "base/fake_clock.h"

namespace normserve::base {
namespace {

TEST(SystemClockTest, ReturnsAtAPassedDeadline) {
  SystemClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock<std::mutex> lock(mutex);
  clock.WaitUntil(lock, changed, absl::InfinitePast());
  clock.WaitUntil(lock, changed, clock.Now() + absl::Milliseconds(1));
  EXPECT_TRUE(lock.owns_lock());
}

TEST(SystemClockTest, WakesWhenNotifiedLongBeforeADistantDeadline) {
  SystemClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread notifier([&] {
    std::lock_guard<std::mutex> lock(mutex);
    ready = true;
    changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  for (absl::Time deadline : {absl::InfiniteFuture(), absl::UnixEpoch() + absl::Hours(1 << 30)}) {
    while (!ready) clock.WaitUntil(lock, changed, deadline);
  }
  lock.unlock();
  notifier.join();
}

TEST(FakeClockTest, AdvanceWakesAWaiter) {
  FakeClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(mutex);
    while (clock.Now() < deadline) clock.WaitUntil(lock, changed, deadline);
  });
  clock.AwaitWaiter();
  clock.Advance(absl::Seconds(5));
  waiter.join();
}

}  // namespace
}  // namespace normserve::base
