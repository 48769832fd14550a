// SPDX-License-Identifier: Apache-2.0
// Tests of client/arrivals.h.
#include "client/arrivals.h"

#include "gtest/gtest.h"

namespace normserve::client {
namespace {

TEST(Arrivals, ConstantRateDoesNotDriftOverALongRun) {
  Arrivals arrivals(ArrivalKind::kConstant, 300, 0);
  EXPECT_EQ(arrivals.next_ns(), 0);
  for (int i = 0; i < 300 * 3600; ++i) arrivals.Advance();
  EXPECT_NEAR(static_cast<double>(arrivals.next_ns()), 3600e9, 2);
}

TEST(Arrivals, PoissonHasTheMeanAndSpreadOfAnExponential) {
  Arrivals arrivals(ArrivalKind::kPoisson, 50, 7);
  constexpr int kCount = 100000;
  double square = 0;
  int64_t before = 0;
  for (int i = 0; i < kCount; ++i) {
    arrivals.Advance();
    ASSERT_GE(arrivals.next_ns(), before);
    const double gap_s = static_cast<double>(arrivals.next_ns() - before) / 1e9;
    square += gap_s * gap_s;
    before = arrivals.next_ns();
  }
  const double mean_s = static_cast<double>(before) / 1e9 / kCount;
  EXPECT_NEAR(mean_s, 0.02, 0.0004);
  EXPECT_NEAR(square / kCount, 2 * 0.02 * 0.02, 0.00004);  // E[x^2] = 2 / rate^2
}

TEST(Arrivals, SameSeedSameTimes) {
  Arrivals a(ArrivalKind::kPoisson, 5, 3), b(ArrivalKind::kPoisson, 5, 3);
  Arrivals other(ArrivalKind::kPoisson, 5, 4);
  a.Advance();
  b.Advance();
  other.Advance();
  EXPECT_EQ(a.next_ns(), b.next_ns());
  EXPECT_NE(a.next_ns(), other.next_ns());
}

}  // namespace
}  // namespace normserve::client
