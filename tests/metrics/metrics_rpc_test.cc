// SPDX-License-Identifier: Apache-2.0
// A17: each request ends in exactly one reason, whatever its end, and the sum closes.
#include <gtest/gtest.h>

#include <thread>

#include "metrics/model_metrics.h"
#include "rpc/test_server.h"

namespace normserve::metrics {
namespace {

using rpc::Ids;
using rpc::TestServer;
using rpc::TestServerOptions;

// The sum of a family's series that have all of `labels`.
double Value(const prometheus::Registry& registry, const std::string& name,
             const std::string& reason = "") {
  double sum = 0;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      bool wanted = reason.empty();
      for (const auto& label : metric.label) wanted = wanted || label.value == reason;
      if (wanted) sum += metric.counter.value + metric.gauge.value;
    }
  }
  return sum;
}

TEST(MetricsRpcTest, TerminalReasonsAddUp) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "fake");
  engine::Gate gate;
  TestServerOptions options;
  options.runner = engine::Gated(gate);
  options.runner.info.max_context_tokens = 100000;  // too long to end before a cancel arrives
  options.runner.info.blocks = 25000;
  options.engine.max_running = 1;
  options.engine.max_waiting = 7;
  options.observer = &metrics;
  TestServer server(std::move(options));
  const auto received = [&] { return Value(registry, "normserve_requests_received_total"); };
  const auto ended = [&](const char* reason) {
    return Value(registry, "normserve_requests_ended_total", reason);
  };

  // One runs, held at the gate; four wait; then three more, whose deadlines pass.
  grpc::ClientContext contexts[5];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>>> readers;
  for (grpc::ClientContext& context : contexts) {
    readers.push_back(server.stub().GenerateStream(&context, Ids({1}, 90000)));
    while (received() < static_cast<double>(readers.size())) absl::SleepFor(absl::Milliseconds(1));
    if (readers.size() == 1) gate.AwaitArrival(1);
  }
  std::vector<std::thread> late;
  for (int i = 0; i < 3; ++i) {
    late.emplace_back([&server] {
      EXPECT_EQ(server.Generate(Ids({2}, 200), absl::Milliseconds(500)).status.error_code(),
                grpc::StatusCode::DEADLINE_EXCEEDED);
    });
  }
  for (std::thread& call : late) call.join();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(server.Generate(Ids({3}, 1), absl::Seconds(20)).status.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(server.Generate(Ids({999}, 1)).status.error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (auto& reader : readers) {
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  gate.Open();
  while (Value(registry, "normserve_requests_ended_total") < received()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(server.Generate(Ids({4}, 2)).status.ok());

  EXPECT_EQ(received(), 22);
  EXPECT_EQ(ended("length"), 10);
  EXPECT_EQ(ended("cancelled"), 5);
  EXPECT_EQ(ended("deadline"), 3);
  EXPECT_EQ(ended("rejected"), 2);
  EXPECT_EQ(ended("invalid"), 2);
  EXPECT_EQ(Value(registry, "normserve_requests_ended_total"), 22);
  EXPECT_EQ(Value(registry, "normserve_requests_running"), 0);
  EXPECT_EQ(Value(registry, "normserve_requests_waiting"), 0);
  EXPECT_EQ(Value(registry, "normserve_kv_blocks", "used"), 0);
}

}  // namespace
}  // namespace normserve::metrics
