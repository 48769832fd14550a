// SPDX-License-Identifier: Apache-2.0
// Names, labels and buckets of the series, and the endpoint that shows them.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "metrics/device_metrics.h"
#include "metrics/exposer.h"
#include "metrics/model_metrics.h"

namespace normserve::metrics {
namespace {

using ::testing::HasSubstr;

// Not HasSubstr: a failure should not print the whole page.
bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string TextOf(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

TEST(ModelMetricsTest, EverySeriesIsThereFromTheStart) {
  prometheus::Registry registry;
  const ModelMetrics a(registry, "a");
  const ModelMetrics b(registry, "b");
  const std::string text = TextOf(registry);
  for (const char* reason : {"stop", "length", "scored", "cancelled", "deadline", "rejected",
                             "invalid", "internal", "shutdown"}) {
    for (const char* model : {"a", "b"}) {
      EXPECT_TRUE(Has(text, std::string("normserve_requests_ended_total{model=\"") + model +
                                "\",reason=\"" + reason + "\"} 0\n"))
          << reason;
    }
  }
  for (const char* name : {"requests_received_total",
                           "requests_running",
                           "requests_waiting",
                           "preemptions_total",
                           "generated_tokens_total",
                           "kv_cache_usage_ratio",
                           "prefix_cache_queried_tokens_total",
                           "prefix_cache_hit_tokens_total",
                           "nonfinite_rows_total",
                           "draft_tokens_total",
                           "draft_tokens_accepted_total",
                           "time_to_first_token_seconds_count",
                           "inter_token_latency_seconds_count",
                           "request_duration_seconds_count",
                           "request_queue_seconds_count",
                           "request_prefill_seconds_count",
                           "request_decode_seconds_count",
                           "request_prompt_tokens_count",
                           "request_generated_tokens_count",
                           "step_batch_size_count",
                           "step_tokens_count",
                           "step_duration_seconds_count"}) {
    EXPECT_TRUE(Has(text, std::string("normserve_") + name + "{model=\"a\"} 0\n")) << name;
  }
}

TEST(ModelMetricsTest, BucketsFitAMillisecondAndTenMinutes) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "m");
  metrics.FirstToken(0.0009);
  metrics.FirstToken(590);
  const std::string text = TextOf(registry);
  const std::string bucket = "normserve_time_to_first_token_seconds_bucket{model=\"m\",le=";
  EXPECT_TRUE(Has(text, bucket + "\"0.0005\"} 0\n"));
  EXPECT_TRUE(Has(text, bucket + "\"0.001\"} 1\n"));
  EXPECT_TRUE(Has(text, bucket + "\"300\"} 1\n"));
  EXPECT_TRUE(Has(text, bucket + "\"600\"} 2\n"));
}

TEST(ModelMetricsTest, EventsReachTheirSeries) {
  prometheus::Registry registry;
  ModelMetrics metrics(registry, "m");
  engine::EngineObserver::RequestTimes ran;
  ran.queue = 0.1;
  ran.prefill = 0.2;
  ran.decode = 0.3;
  ran.end_to_end = 0.6;
  engine::Usage usage;
  usage.prompt_tokens = 5;
  usage.completion_tokens = 7;
  metrics.RequestReceived();
  metrics.RequestReceived();
  metrics.RequestEnded(engine::Terminal::kStop, ran, usage);
  metrics.RequestEnded(engine::Terminal::kRejected, {}, {});
  metrics.PromptTokens(3, 2);
  metrics.Drafted(9, 4);
  metrics.StepDone({0.01, 3, 4, 2}, {1, 2, 30, 10, 100});
  metrics.StepDone({}, {0, 0, 25, 10, 100});
  const std::string text = TextOf(registry);
  for (const char* line : {
           "normserve_requests_received_total{model=\"m\"} 2\n",
           "normserve_requests_ended_total{model=\"m\",reason=\"stop\"} 1\n",
           "normserve_requests_ended_total{model=\"m\",reason=\"rejected\"} 1\n",
           "normserve_request_duration_seconds_count{model=\"m\"} 1\n",
           "normserve_request_queue_seconds_count{model=\"m\"} 1\n",
           "normserve_request_generated_tokens_sum{model=\"m\"} 7\n",
           "normserve_prompt_tokens_total{model=\"m\",source=\"computed\"} 3\n",
           "normserve_prompt_tokens_total{model=\"m\",source=\"cached\"} 2\n",
           "normserve_draft_tokens_total{model=\"m\"} 9\n",
           "normserve_draft_tokens_accepted_total{model=\"m\"} 4\n",
           "normserve_kv_blocks{model=\"m\",state=\"used\"} 25\n",
           "normserve_kv_blocks{model=\"m\",state=\"free\"} 65\n",
           "normserve_kv_cache_usage_ratio{model=\"m\"} 0.25\n",
           "normserve_requests_running{model=\"m\"} 0\n",
           "normserve_step_tokens_sum{model=\"m\"} 7\n",
           "normserve_step_batch_size_count{model=\"m\"} 1\n",  // an idle wake-up is no step
       }) {
    EXPECT_TRUE(Has(text, line)) << line;
  }
}

// A plain HTTP GET of /metrics.
std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return text;
}

TEST(ExposerTest, ServesTheRegistryAndTheProcess) {
  auto registry = std::make_shared<prometheus::Registry>();
  AddBuildInfo(*registry, {{"version", "1.2.3"}});
  ModelMetrics metrics(*registry, "m");
  DeviceReading reading{3, 8, 0.25};
  auto exposer = Exposer::Start(
      "localhost:0", {registry, std::make_shared<DeviceMetrics>("cuda:1", [&reading] { return reading; })});
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  ASSERT_GT((*exposer)->port(), 0);
  const std::string answer = Scrape((*exposer)->port());
  EXPECT_TRUE(Has(answer, "200 OK"));
  EXPECT_TRUE(Has(answer, "text/plain"));
  EXPECT_TRUE(Has(answer, "normserve_build_info{version=\"1.2.3\"} 1\n"));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_start_time_seconds"}) {
    EXPECT_TRUE(Has(answer, std::string("\n") + name + " ")) << name;
  }
  EXPECT_FALSE(Has(answer, "\nprocess_resident_memory_bytes 0\n"));
  EXPECT_TRUE(Has(answer, "normserve_device_memory_used_bytes{device=\"cuda:1\"} 3\n"));
  EXPECT_TRUE(Has(answer, "normserve_device_memory_total_bytes{device=\"cuda:1\"} 8\n"));
  EXPECT_TRUE(Has(answer, "normserve_device_utilization_ratio{device=\"cuda:1\"} 0.25\n"));
  reading = {};  // not known
  EXPECT_FALSE(Has(Scrape((*exposer)->port()), "normserve_device_"));

  const std::string taken = "127.0.0.1:" + std::to_string((*exposer)->port());
  const auto second = Exposer::Start(taken, {registry});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--metrics-listen " + taken));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  EXPECT_FALSE(Exposer::Start("nowhere", {registry}).ok());
}

TEST(ExposerTest, PromtoolAcceptsEverything) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool here";
  auto registry = std::make_shared<prometheus::Registry>();
  AddBuildInfo(*registry, {{"version", "1.2.3"}});
  ModelMetrics metrics(*registry, "m");
  metrics.FirstToken(0.01);
  auto exposer = Exposer::Start("127.0.0.1:0", {registry});
  ASSERT_TRUE(exposer.ok());
  const std::string answer = Scrape((*exposer)->port());
  const std::string path = ::testing::TempDir() + "/metrics_test.txt";
  std::ofstream(path) << answer.substr(answer.find("\r\n\r\n") + 4);
  const std::string command = "promtool check metrics < " + path + " > " + path + ".out 2>&1";
  const int rc = std::system(command.c_str());
  std::ifstream out(path + ".out");
  std::stringstream said;
  said << out.rdbuf();
  EXPECT_EQ(rc, 0) << said.str();
  EXPECT_EQ(said.str(), "");
}

}  // namespace
}  // namespace normserve::metrics
