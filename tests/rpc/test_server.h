// SPDX-License-Identifier: Apache-2.0
// A gRPC server on a free port of localhost with one fake model, and a client of it.
#pragma once

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/fake_runner.h"
#include "engine/harness.h"
#include "engine/recorders.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "normserve/v1/generation.grpc.pb.h"
#include "rpc/server.h"
#include "text/fake_tokenizer.h"

namespace normserve::rpc {

struct TestServerOptions {
  engine::FakeRunnerOptions runner;
  engine::EngineOptions engine;
  std::vector<std::string> extra_pieces;
  GenerationDefaults defaults;
  bool tokenizer = true;
  engine::EngineObserver* observer = nullptr;  // null: the server's own recorder
  bool publish = true;                         // false: still loading
};

// Order of members is order of life.
class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {})
      : log_fd_(open("/dev/null", O_WRONLY | O_CLOEXEC)),
        log_(base::LogLevel::kInfo, log_fd_),
        tokenizer_(std::move(options.extra_pieces)) {
    engine::EngineObserver* observer = options.observer != nullptr ? options.observer : &recorder_;
    const text::Tokenizer* tokenizer = options.tokenizer ? &tokenizer_ : nullptr;
    engine_ = std::make_unique<engine::Engine>(
        "fake", options.engine, std::make_unique<engine::FakeRunner>(std::move(options.runner)),
        tokenizer, observer);
    served_.card.name = "fake";
    served_.defaults = options.defaults;
    served_.engine = engine_.get();
    served_.tokenizer = tokenizer;
    served_.observer = observer;
    ServerOptions server_options;
    server_options.listen = "127.0.0.1:0";
    server_options.model_names = {"fake"};
    auto server = Server::Start(server_options, &table_, &log_);
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      return;
    }
    server_ = *std::move(server);
    if (options.publish) Publish();
    channel_ = NewChannel({});
    stub_ = v1::GenerationService::NewStub(channel_);
  }
  ~TestServer() {
    server_.reset();
    engine_.reset();
    close(log_fd_);
  }

  void Publish() {
    table_.Publish({served_});
    server_->SetServing();
  }

  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments) const {
    // A pool of its own, so that tests do not share connections.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  struct Answer {
    grpc::Status status;
    v1::GenerateResponse response;
  };
  Answer Generate(const v1::GenerateRequest& request,
                  absl::Duration timeout = absl::InfiniteDuration()) {
    Answer answer;
    grpc::ClientContext context;
    if (timeout != absl::InfiniteDuration()) {
      context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    }
    answer.status = stub_->Generate(&context, request, &answer.response);
    return answer;
  }

  // All chunks, joined; `chunks` as they came.
  struct Stream {
    grpc::Status status;
    v1::GenerateResponse joined;
    std::vector<v1::GenerateChunk> chunks;
  };
  Stream GenerateStream(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto reader = stub_->GenerateStream(&context, request);
    return ReadAll(*reader);
  }
  static Stream ReadAll(grpc::ClientReader<v1::GenerateChunk>& reader) {
    Stream stream;
    v1::GenerateChunk chunk;
    while (reader.Read(&chunk)) {
      Append(chunk, &stream.joined);
      stream.chunks.push_back(chunk);
    }
    stream.status = reader.Finish();
    return stream;
  }

  // Returns when what was received has ended and the gauges are at rest, or fails.
  void ExpectIdle() const {
    engine::RecordingObserver::Counts c;
    for (int i = 0; i < 1000; ++i) {
      c = recorder_.Now();
      if (c.received == c.ended_total() && c.gauges.running == 0 && c.gauges.waiting == 0 &&
          c.gauges.blocks_used == 0) {
        return;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "received " << c.received << ", ended " << c.ended_total() << ", running "
                  << c.gauges.running << ", waiting " << c.gauges.waiting << ", blocks used "
                  << c.gauges.blocks_used;
  }

  v1::GenerationService::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  Server& server() { return *server_; }
  engine::Engine& engine() { return *engine_; }
  const ServedModel& served() const { return served_; }
  const text::FakeTokenizer& tokenizer() const { return tokenizer_; }
  engine::RecordingObserver::Counts counts() const { return recorder_.Now(); }

 private:
  // As the proto says: the lists and the text are deltas, the rest is on the last chunk.
  static void Append(const v1::GenerateChunk& chunk, v1::GenerateResponse* joined) {
    joined->mutable_text()->append(chunk.text());
    joined->mutable_token_ids()->MergeFrom(chunk.token_ids());
    joined->mutable_token_logprobs()->MergeFrom(chunk.token_logprobs());
    joined->mutable_top_logprobs()->MergeFrom(chunk.top_logprobs());
    joined->set_finish_reason(chunk.finish_reason());
    joined->set_stop_match(chunk.stop_match());
    joined->set_seed(chunk.seed());
    if (chunk.has_usage()) *joined->mutable_usage() = chunk.usage();
  }

  const int log_fd_;
  base::Log log_;
  text::FakeTokenizer tokenizer_;
  engine::RecordingObserver recorder_;
  std::unique_ptr<engine::Engine> engine_;
  ServedModel served_;
  ModelTable table_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

inline v1::GenerateRequest Ids(std::vector<uint32_t> ids, uint32_t max_new_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.mutable_stop()->set_max_new_tokens(max_new_tokens);
  return request;
}

inline std::vector<uint32_t> IdsOf(const v1::GenerateResponse& response) {
  return {response.token_ids().begin(), response.token_ids().end()};
}

}  // namespace normserve::rpc
