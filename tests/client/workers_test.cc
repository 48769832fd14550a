// SPDX-License-Identifier: Apache-2.0
// Tests of client/workers.h with invented times.
#include "client/workers.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace normserve::client {
namespace {

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kFull = absl::StatusCode::kResourceExhausted;
constexpr auto kAway = absl::StatusCode::kUnavailable;

TEST(WorkersTest, EachWorkerHasOneCallInFlight) {
  Workers workers(2, 0);
  EXPECT_EQ(workers.NextSendNs(), 0);
  EXPECT_EQ(workers.Take(), 0u);
  EXPECT_EQ(workers.NextSendNs(), 0);
  EXPECT_EQ(workers.Take(), 0u);
  EXPECT_EQ(workers.NextSendNs(), INT64_MAX);
  workers.Release(0, kOk, 5);
  EXPECT_EQ(workers.NextSendNs(), 0);
}

TEST(WorkersTest, RestsDoubleUpToTheMostAndNeverOverflow) {
  Workers workers(1, 0);
  int64_t now = 1'000'000'000'000;
  int64_t most = kFirstRestNs;
  for (uint32_t refusals = 0; refusals < 100; ++refusals) {
    ASSERT_EQ(workers.Take(), refusals);
    workers.Release(refusals, refusals % 2 == 0 ? kFull : kAway, now);
    const int64_t rest = workers.NextSendNs() - now;
    EXPECT_GT(rest, most / 2) << refusals;
    EXPECT_LE(rest, most) << refusals;
    now = workers.NextSendNs();
    most = std::min(2 * most, kMostRestNs);
  }
}

TEST(WorkersTest, AnyOtherEndStartsTheCountAnew) {
  for (const absl::StatusCode end : {kOk, absl::StatusCode::kInternal}) {
    Workers workers(1, 0);
    workers.Take();
    workers.Release(0, kFull, 0);
    workers.Release(workers.Take(), kFull, 0);
    EXPECT_EQ(workers.Take(), 2u);
    workers.Release(2, end, 0);
    EXPECT_EQ(workers.NextSendNs(), 0);
    EXPECT_EQ(workers.Take(), 0u);
  }
}

TEST(WorkersTest, ARefusedWorkerHoldsUpNoOther) {
  Workers workers(2, 0);
  workers.Take();
  workers.Take();
  workers.Release(0, kFull, 1000);
  EXPECT_GT(workers.NextSendNs(), 1000);
  workers.Release(0, kOk, 2000);
  EXPECT_EQ(workers.NextSendNs(), 0);
  EXPECT_EQ(workers.Take(), 0u);
  EXPECT_EQ(workers.Take(), 1u);
}

TEST(WorkersTest, WorkersRefusedTogetherDoNotComeBackTogether) {
  Workers workers(2, 7);
  workers.Take();
  workers.Take();
  workers.Release(0, kFull, 0);
  workers.Release(0, kFull, 0);
  const int64_t first = workers.NextSendNs();
  workers.Take();
  EXPECT_GT(workers.NextSendNs(), first);
}

}  // namespace
}  // namespace normserve::client
