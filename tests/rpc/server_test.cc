// SPDX-License-Identifier: Apache-2.0
// What the server does apart from generating: health, names, ids, draining, slow readers.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>

#include "rpc/test_server.h"

namespace normserve::rpc {
namespace {

using ::testing::HasSubstr;
using HealthStatus = grpc::health::v1::HealthCheckResponse;
using Health = grpc::health::v1::Health;

struct HealthAnswer {
  grpc::StatusCode code;
  HealthStatus::ServingStatus status;
};
HealthAnswer Check(const TestServer& server, const std::string& service) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthStatus response;
  const grpc::Status status =
      Health::NewStub(server.channel())->Check(&context, request, &response);
  return {status.error_code(), response.status()};
}

TEST(ServerTest, HealthIsNotServingUntilLoadedAndFrozenOnceDraining) {
  TestServerOptions options;
  options.publish = false;
  TestServer server(std::move(options));
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  auto watch = Health::NewStub(server.channel())->Watch(&context, request);
  HealthStatus seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthStatus::NOT_SERVING);

  const char* const names[] = {"", "fake", "normserve.v1.GenerationService"};
  for (const char* name : names) EXPECT_EQ(Check(server, name).status, HealthStatus::NOT_SERVING);
  EXPECT_EQ(Check(server, "other").code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(server.Generate(Ids({1}, 1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);

  server.Publish();
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthStatus::SERVING);
  for (const char* name : names) EXPECT_EQ(Check(server, name).status, HealthStatus::SERVING);
  EXPECT_TRUE(server.Generate(Ids({1}, 1)).status.ok());

  server.server().BeginDrain();
  server.server().SetServing();  // must not come back
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthStatus::NOT_SERVING);
  for (const char* name : names) EXPECT_EQ(Check(server, name).status, HealthStatus::NOT_SERVING);
  // An open watch must not hold up the end.
  const absl::Time start = absl::Now();
  server.server().Shutdown(start + absl::Seconds(20));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_FALSE(watch->Read(&seen));
}

TEST(ServerTest, WatchOfAnUnknownServiceSaysSo) {
  TestServer server;
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("other");
  auto watch = Health::NewStub(server.channel())->Watch(&context, request);
  HealthStatus seen;
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), HealthStatus::SERVICE_UNKNOWN);
}

TEST(ServerTest, DrainingEndsStreamsInFlightCleanlyAndRefusesNewOnes) {
  engine::Gate gate;
  TestServerOptions options;
  options.runner = engine::Gated(gate);
  TestServer server(std::move(options));
  TestServer::Stream stream;
  std::thread call([&] { stream = server.GenerateStream(Ids({1, 2, 3}, 20)); });
  gate.AwaitArrival(1);
  server.server().BeginDrain();
  std::thread drain([&] { server.engine().Drain(absl::Now() + absl::Seconds(30)); });
  // Until Drain has begun a request is still taken, and then ends like the stream.
  while (server.Generate(Ids({1}, 1), absl::Milliseconds(50)).status.error_code() !=
         grpc::StatusCode::UNAVAILABLE) {
  }
  gate.Open();
  drain.join();
  server.server().Shutdown(absl::Now() + absl::Seconds(10));
  call.join();
  EXPECT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(stream.joined.token_ids_size(), 20);
}

TEST(ServerTest, ASecondServerOnThePortFailsClearly) {
  TestServer first;
  const base::Log log;
  ModelTable table;
  ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(first.server().port());
  const auto second = Server::Start(options, &table, &log);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

TEST(ServerTest, StreamEqualsUnary) {
  TestServerOptions options;
  options.defaults.eos_token_ids = {};
  TestServer server(std::move(options));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    v1::GenerateRequest request;
    request.set_text("prompt " + std::to_string(seed % 3));
    request.mutable_stop()->set_max_new_tokens(1 + seed * 3);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_sampling()->set_temperature(seed % 2 == 0 ? 0.0f : 0.9f);
    request.mutable_output()->set_top_logprobs(seed % 4);
    request.mutable_output()->set_logprobs(seed % 3 == 0);
    TestServer::Answer unary = server.Generate(request);
    TestServer::Stream stream = server.GenerateStream(request);
    ASSERT_TRUE(unary.status.ok() && stream.status.ok());
    // What the prefix cache had depends on what ran before.
    unary.response.mutable_usage()->clear_cached_tokens();
    stream.joined.mutable_usage()->clear_cached_tokens();
    EXPECT_EQ(stream.joined.SerializeAsString(), unary.response.SerializeAsString()) << seed;
    EXPECT_EQ(unary.response.token_ids_size(), static_cast<int>(1 + seed * 3));
    for (size_t i = 0; i + 1 < stream.chunks.size(); ++i) {
      EXPECT_EQ(stream.chunks[i].finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
      EXPECT_FALSE(stream.chunks[i].has_usage());
    }
  }
}

// The answer is larger than any flow-control window, and nobody reads it: the engine goes on.
TEST(ServerTest, ASlowReaderHoldsUpNobodyAndLosesNothing) {
  TestServer server;
  v1::GenerateRequest request = Ids({1, 2, 3}, 240);
  request.mutable_output()->set_top_logprobs(258);
  grpc::ClientContext context;
  auto reader = server.stub().GenerateStream(&context, request);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(server.Generate(Ids({9}, 3), absl::Seconds(20)).status.ok());
  }
  server.ExpectIdle();  // the engine is done with it
  TestServer::Stream slow = TestServer::ReadAll(*reader);
  ASSERT_TRUE(slow.status.ok());
  EXPECT_EQ(slow.joined.token_ids_size(), 240);
  const TestServer::Answer again = server.Generate(request);
  EXPECT_EQ(slow.joined.text(), again.response.text());
  EXPECT_EQ(IdsOf(slow.joined), IdsOf(again.response));
  ASSERT_EQ(slow.joined.top_logprobs_size(), 240);
  EXPECT_EQ(slow.joined.top_logprobs(239).SerializeAsString(),
            again.response.top_logprobs(239).SerializeAsString());
}

std::string RequestIdOf(TestServer& server, const char* given) {
  grpc::ClientContext context;
  if (given != nullptr) context.AddMetadata("x-request-id", given);
  v1::GenerateResponse response;
  EXPECT_TRUE(server.stub().Generate(&context, Ids({1}, 1), &response).ok());
  const auto& metadata = context.GetServerInitialMetadata();
  const auto found = metadata.find("x-request-id");
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

TEST(ServerTest, RequestIdsAreReturnedOrMade) {
  TestServer server;
  EXPECT_EQ(RequestIdOf(server, "my-id 7"), "my-id 7");
  EXPECT_EQ(RequestIdOf(server, std::string(128, 'x').c_str()), std::string(128, 'x'));
  std::set<std::string> made = {RequestIdOf(server, nullptr), RequestIdOf(server, nullptr),
                                RequestIdOf(server, std::string(129, 'x').c_str())};
  EXPECT_EQ(made.size(), 3u);
  for (const std::string& id : made) EXPECT_EQ(id.size(), 32u);
}

TEST(ServerTest, ModelNames) {
  TestServer server;
  v1::GenerateRequest request = Ids({1}, 1);
  EXPECT_TRUE(server.Generate(request).status.ok());  // the only model
  request.set_model("fake");
  EXPECT_TRUE(server.Generate(request).status.ok());
  request.set_model("fak");
  const grpc::Status status = server.Generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("known: fake"));

  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(server.stub().ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "fake");
  EXPECT_EQ(models.models(0).vocab_size(), 258u);
  EXPECT_EQ(models.models(0).max_context_tokens(), 256u);
  EXPECT_EQ(models.models(0).tokenizer(), "fake");
}

grpc::Status CallWithBytes(const TestServer& server, const std::string& method,
                           const std::string& bytes) {
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  // Through a queue that this thread waits on: gRPC's callbacks would look like races to a sanitizer.
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/normserve.v1.GenerationService/" + method,
                                          request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
  return status;
}

TEST(ServerTest, BytesThatAreNoMessageAreInvalidAndCounted) {
  TestServer server;
  const std::string cut_short = "\x0a\x05" "fak";
  const std::string not_utf8 = "\x0a\x02\xff\xfe";  // model: ff fe
  const std::pair<std::string, std::string> methods[] = {
      {"Generate", "GenerateRequest"},     {"GenerateStream", "GenerateRequest"},
      {"Score", "ScoreRequest"},           {"Tokenize", "TokenizeRequest"},
      {"Detokenize", "DetokenizeRequest"}, {"ListModels", "ListModelsRequest"},
      {"GetModel", "GetModelRequest"},
  };
  for (const auto& [method, type] : methods) {
    for (const std::string& bytes : {cut_short, not_utf8}) {
      if (type == "ListModelsRequest" && bytes == not_utf8) continue;  // has no such field
      const grpc::Status status = CallWithBytes(server, method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(status.error_message(), HasSubstr("not a valid normserve.v1." + type + ":"));
    }
  }
  // Of Generate, GenerateStream and Score, as for any fault of a field.
  EXPECT_EQ(server.counts().of(engine::Terminal::kInvalid), 6u);
  EXPECT_TRUE(CallWithBytes(server, "GetModel", "\x0a\x04" "fake").ok());
  server.ExpectIdle();
}

TEST(ServerTest, TokenizeAndDetokenize) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text("hi");
  v1::TokenizeResponse tokens;
  grpc::ClientContext tokenize;
  ASSERT_TRUE(server.stub().Tokenize(&tokenize, request, &tokens).ok());
  EXPECT_THAT(tokens.ids(), ::testing::ElementsAre(256, 'h', 'i'));
  EXPECT_THAT(tokens.pieces(), ::testing::ElementsAre("<s>", "h", "i"));

  v1::DetokenizeRequest back;
  *back.mutable_token_ids()->mutable_ids() = tokens.ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext first;
  ASSERT_TRUE(server.stub().Detokenize(&first, back, &text).ok());
  EXPECT_EQ(text.text(), "hi");
  back.set_skip_special_tokens(false);
  grpc::ClientContext second;
  ASSERT_TRUE(server.stub().Detokenize(&second, back, &text).ok());
  EXPECT_EQ(text.text(), "<s>hi");
  back.mutable_token_ids()->add_ids(258);
  grpc::ClientContext third;
  EXPECT_EQ(server.stub().Detokenize(&third, back, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(ServerTest, TextCallsWithoutATokenizerAreFailedPrecondition) {
  TestServerOptions options;
  options.tokenizer = false;
  TestServer server(std::move(options));
  v1::GenerateRequest request;
  request.set_text("hi");
  EXPECT_EQ(server.Generate(request).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(server.GenerateStream(request).status.error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  const TestServer::Answer ids = server.Generate(Ids({1, 2}, 3));
  ASSERT_TRUE(ids.status.ok());
  EXPECT_EQ(ids.response.text(), "");
  EXPECT_EQ(ids.response.token_ids_size(), 3);
}

}  // namespace
}  // namespace normserve::rpc
