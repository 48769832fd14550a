// SPDX-License-Identifier: Apache-2.0
// Tests of client/load_run.h against a stub server in the same process, whose delays are scripted.
// Only lower bounds are asserted on times, which hold however slow the machine is.
#include "client/load_run.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "client/load_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normserve::client {
namespace {

using std::chrono::milliseconds;

// Answers every call after `delay`, and the call number `stall_at` after `stall`.
class StubService final : public v1::GenerationService::Service {
 public:
  milliseconds delay{0};
  int stall_at = -1;
  milliseconds stall{0};
  int messages = 1;
  int ids_per_message = 1;
  int claimed_tokens = -1;  // usage; -1 = what was sent
  int fail_from = 1 << 30;  // calls from this number on are refused
  std::atomic<int> calls{0}, now{0}, most{0};

  grpc::Status GenerateStream(grpc::ServerContext* context, const v1::GenerateRequest* request,
                              grpc::ServerWriter<v1::GenerateChunk>* writer) override {
    const int call = calls++;
    const int flying = ++now;
    for (int seen = most; flying > seen && !most.compare_exchange_weak(seen, flying);) {
    }
    const milliseconds wait = call == stall_at ? stall : delay;
    const auto end = std::chrono::steady_clock::now() + wait;
    while (std::chrono::steady_clock::now() < end && !context->IsCancelled()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    for (int i = 0; i < messages; ++i) {
      v1::GenerateChunk chunk;
      for (int k = 0; k < ids_per_message; ++k) chunk.add_token_ids(k);
      if (i + 1 == messages) {
        chunk.set_finish_reason(v1::FINISH_REASON_MAX_NEW_TOKENS);
        chunk.mutable_usage()->set_prompt_tokens(7);
        chunk.mutable_usage()->set_completion_tokens(
            claimed_tokens >= 0 ? claimed_tokens : messages * ids_per_message);
      }
      writer->Write(chunk);
    }
    --now;
    if (call >= fail_from) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full"};
    return grpc::Status::OK;
  }
};

class LoadRunTest : public ::testing::Test {
 protected:
  LoadOutcome Run(const LoadPlan& plan) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    ConnectionOptions connection;
    connection.target = "127.0.0.1:" + std::to_string(port);
    const auto stubs = Connect(connection, 1);
    const std::vector<v1::GenerateRequest> requests(3);
    LoadRun run(connection, plan, stubs, requests);
    auto outcome = run.Run([&run, this](const LoadRun::Progress& progress) {
      if (stop_after_ > 0 && service_.calls >= stop_after_) run.Stop();
    });
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.ok() ? *std::move(outcome) : LoadOutcome();
  }

  StubService service_;
  int stop_after_ = 0;
};

// A client that measures from the moment it got round to sending reports the server's usual delay
// while the backlog grows (coordinated omission).
TEST_F(LoadRunTest, OpenLoopLatencyIncludesTheWaitForAStalledServer) {
  service_.delay = milliseconds(20);
  service_.stall_at = 2;
  service_.stall = milliseconds(700);
  LoadPlan plan;
  plan.rate_per_s = 50;
  plan.concurrency = 1;
  plan.duration_s = 1.2;
  const LoadOutcome outcome = Run(plan);
  const LoadReport report = Report(plan, outcome, 50);
  EXPECT_EQ(report.offered, 60u);
  EXPECT_EQ(report.offered, report.sent + report.unsent);
  EXPECT_GT(report.unsent, 0u);
  EXPECT_GE(report.end_to_end.p99_ms, 700);
  // Those sent after the stall waited for most of it, though the server served each in 20 ms.
  EXPECT_GE(report.dispatch_lag.max_ms, 600);
  EXPECT_GE(report.end_to_end.p90_ms, 600);
  EXPECT_LT(report.achieved_per_s, report.offered_per_s);
  EXPECT_FALSE(report.invalid.empty());
}

TEST_F(LoadRunTest, OpenLoopWithoutALimitSendsAtTheRateThroughAStall) {
  service_.delay = milliseconds(100);
  LoadPlan plan;
  plan.rate_per_s = 100;
  plan.concurrency = 0;
  plan.requests = 30;
  const LoadOutcome outcome = Run(plan);
  EXPECT_EQ(outcome.records.size(), 30u);
  EXPECT_EQ(outcome.unsent, 0u);
  EXPECT_GT(service_.most, 1) << "calls must overlap";
  EXPECT_GE(outcome.seconds, 0.39);  // the last is due at 290 ms
}

TEST_F(LoadRunTest, ClosedLoopKeepsExactlyNInFlight) {
  service_.delay = milliseconds(10);
  LoadPlan plan;
  plan.concurrency = 4;
  plan.requests = 40;
  const LoadOutcome outcome = Run(plan);
  EXPECT_EQ(outcome.records.size(), 40u);
  EXPECT_EQ(outcome.offered, 40u);
  EXPECT_EQ(service_.most, 4);
}

TEST_F(LoadRunTest, TokensAreCountedFromIdsAndNotFromMessages) {
  service_.messages = 3;
  service_.ids_per_message = 4;
  LoadPlan plan;
  plan.requests = 2;
  const LoadOutcome outcome = Run(plan);
  const LoadReport report = Report(plan, outcome, 50);
  EXPECT_EQ(report.output_tokens, 24u);
  EXPECT_EQ(report.prompt_tokens, 14u);
  EXPECT_EQ(report.inter_token.count, 16u);  // those of the first message have no interval
}

TEST_F(LoadRunTest, AStreamThatEndsShortOfItsUsageIsAFailure) {
  service_.claimed_tokens = 5;
  LoadPlan plan;
  plan.requests = 1;
  const LoadReport report = Report(plan, Run(plan), 50);
  EXPECT_EQ(report.succeeded, 0u);
  EXPECT_EQ(report.errors.at("DATA_LOSS"), 1u);
}

TEST_F(LoadRunTest, ErrorsAreCountedByCode) {
  service_.fail_from = 3;
  LoadPlan plan;
  plan.requests = 5;
  const LoadReport report = Report(plan, Run(plan), 50);
  EXPECT_EQ(report.succeeded, 3u);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED"), 2u);
}

// A loop without a rest sends thousands of calls in this time. Rests are 5, 10, 20, ... ms at
// least: a worker gets no eighth call in before 635 ms.
TEST_F(LoadRunTest, AClosedLoopBacksOffFromAServerThatRefuses) {
  service_.fail_from = 0;
  LoadPlan plan;
  plan.concurrency = 2;
  plan.duration_s = 0.6;
  const LoadReport report = Report(plan, Run(plan), 50);
  EXPECT_EQ(report.succeeded, 0u);
  EXPECT_GE(report.errors.at("RESOURCE_EXHAUSTED"), 2u);
  EXPECT_LE(report.errors.at("RESOURCE_EXHAUSTED"), 14u);
}

TEST_F(LoadRunTest, AnOpenLoopKeepsItsRateAgainstAServerThatRefuses) {
  service_.fail_from = 0;
  LoadPlan plan;
  plan.rate_per_s = 100;
  plan.concurrency = 0;
  plan.requests = 40;
  const LoadOutcome outcome = Run(plan);
  EXPECT_EQ(outcome.records.size(), 40u);
  EXPECT_EQ(outcome.unsent, 0u);
}

TEST_F(LoadRunTest, WarmupIsNotMeasured) {
  LoadPlan plan;
  plan.requests = 5;
  plan.warmup = 3;
  const LoadOutcome outcome = Run(plan);
  EXPECT_EQ(service_.calls, 8);
  EXPECT_EQ(outcome.records.size(), 5u);
  EXPECT_EQ(outcome.offered, 5u);
}

TEST_F(LoadRunTest, StopCancelsWhatIsInFlightAndReportsTheRest) {
  service_.delay = std::chrono::minutes(10);
  stop_after_ = 2;
  LoadPlan plan;
  plan.concurrency = 2;
  plan.requests = 100;
  const LoadOutcome outcome = Run(plan);
  EXPECT_TRUE(outcome.interrupted);
  const LoadReport report = Report(plan, outcome, 50);
  EXPECT_EQ(report.errors.at("CANCELLED"), 2u);
  EXPECT_FALSE(report.invalid.empty());
}

TEST_F(LoadRunTest, CallsLeftAtTheEndAreCancelledAfterTheDrainTime) {
  service_.delay = std::chrono::minutes(10);
  LoadPlan plan;
  plan.duration_s = 0.05;
  plan.drain_s = 0.05;
  const LoadOutcome outcome = Run(plan);
  ASSERT_EQ(outcome.records.size(), 1u);
  EXPECT_EQ(outcome.records[0].status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace normserve::client
