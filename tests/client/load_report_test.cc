// SPDX-License-Identifier: Apache-2.0
// Tests of client/load_report.h: what is counted, from when, and when a run is invalid.
#include "client/load_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kMs = 1'000'000;

CallRecord Ok(int64_t intended_ms, int64_t sent_ms, int64_t first_ms, int64_t end_ms) {
  CallRecord record;
  record.intended_ns = intended_ms * kMs;
  record.sent_ns = sent_ms * kMs;
  record.first_token_ns = first_ms * kMs;
  record.end_ns = end_ms * kMs;
  record.prompt_tokens = 10;
  record.output_tokens = 4;
  record.inter_token_ns = {kMs, 2 * kMs, 3 * kMs};
  return record;
}

TEST(LoadReport, LatencyCountsFromTheIntendedTime) {
  LoadPlan plan;
  plan.rate_per_s = 10;
  LoadOutcome outcome;
  outcome.records = {Ok(100, 130, 150, 200)};
  outcome.offered = 1;
  outcome.seconds = 2;
  const LoadReport report = Report(plan, outcome, 50);
  EXPECT_DOUBLE_EQ(report.time_to_first_token.max_ms, 50);
  EXPECT_DOUBLE_EQ(report.end_to_end.max_ms, 100);
  EXPECT_DOUBLE_EQ(report.dispatch_lag.max_ms, 30);
  EXPECT_EQ(report.inter_token.count, 3u);
  EXPECT_DOUBLE_EQ(report.achieved_per_s, 0.5);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_s, 2);
  EXPECT_DOUBLE_EQ(report.total_tokens_per_s, 7);
  EXPECT_THAT(report.invalid, IsEmpty());
}

TEST(LoadReport, FailedCallsAreCountedByCodeAndLeaveLatencyAlone) {
  LoadOutcome outcome;
  outcome.records = {Ok(1, 1, 2, 3), Ok(1, 1, 2, 900), Ok(1, 1, 2, 900)};
  outcome.records[1].status = absl::ResourceExhaustedError("queue full");
  outcome.records[2].status = absl::ResourceExhaustedError("queue full");
  outcome.offered = 3;
  outcome.seconds = 1;
  const LoadReport report = Report(LoadPlan(), outcome, 50);
  EXPECT_EQ(report.sent, 3u);
  EXPECT_EQ(report.succeeded, 1u);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED"), 2u);
  EXPECT_EQ(report.output_tokens, 4u);
  EXPECT_DOUBLE_EQ(report.end_to_end.max_ms, 2);
  EXPECT_THAT(ToTable(report), HasSubstr("RESOURCE_EXHAUSTED: 2 (queue full)"));
  EXPECT_EQ(ToJson(report)["requests"]["failed"], 2);
}

TEST(LoadReport, LagAboveTheLimitOrUnsentRequestsMakeARunInvalid) {
  LoadPlan plan;
  plan.rate_per_s = 10;
  LoadOutcome outcome;
  outcome.records = {Ok(0, 60, 70, 80)};
  outcome.offered = 3;
  outcome.unsent = 2;
  outcome.seconds = 1;
  const LoadReport report = Report(plan, outcome, 50);
  EXPECT_THAT(report.invalid, SizeIs(2));
  EXPECT_THAT(ToTable(report), HasSubstr("INVALID"));
  EXPECT_EQ(ToJson(report)["valid"], false);
}

}  // namespace
}  // namespace normserve::client
