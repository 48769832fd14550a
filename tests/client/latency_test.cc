// SPDX-License-Identifier: Apache-2.0
// Tests of client/latency.h.
#include "client/latency.h"

#include "gtest/gtest.h"

namespace normserve::client {
namespace {

TEST(Percentile, IsTheNearestRank) {
  std::vector<int64_t> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(Percentile(hundred, 50), 50);
  EXPECT_EQ(Percentile(hundred, 90), 90);
  EXPECT_EQ(Percentile(hundred, 99), 99);
  EXPECT_EQ(Percentile(hundred, 100), 100);
  EXPECT_EQ(Percentile({10, 20, 30}, 50), 20);
  EXPECT_EQ(Percentile({10, 20, 30}, 99), 30);
  EXPECT_EQ(Percentile({10}, 1), 10);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST(Summarize, TakesSamplesInAnyOrder) {
  const LatencySummary summary = Summarize({4'000'000, 1'000'000, 3'000'000, 2'000'000});
  EXPECT_EQ(summary.count, 4u);
  EXPECT_DOUBLE_EQ(summary.mean_ms, 2.5);
  EXPECT_DOUBLE_EQ(summary.p50_ms, 2);
  EXPECT_DOUBLE_EQ(summary.p99_ms, 4);
  EXPECT_DOUBLE_EQ(summary.max_ms, 4);
}

}  // namespace
}  // namespace normserve::client
