// SPDX-License-Identifier: Apache-2.0
// Faults that other servers have had, seen through gRPC; each named after what it guards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "rpc/test_server.h"

namespace normserve::rpc {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kExtra = text::FakeTokenizer::kFirstExtra;

TestServerOptions WithRunner(engine::FakeRunnerOptions runner) {
  TestServerOptions options;
  options.runner = std::move(runner);
  return options;
}

// A1
TEST(ServerRegressionTest, StopStringPiecesNeverLeakIntoTheStream) {
  TestServerOptions options = WithRunner(engine::Scripted(
      1, {kExtra, kExtra + 5, kExtra, kExtra + 1, kExtra + 2, kExtra + 3, kExtra + 4}));
  options.extra_pieces = {"ABC", "DEF", "G", "HI", "JKL", "DEX"};
  TestServer server(std::move(options));
  v1::GenerateRequest request = Ids({1}, 50);
  request.mutable_stop()->add_stop_strings("DEFGHIJ");
  const TestServer::Stream stream = server.GenerateStream(request);
  const TestServer::Answer unary = server.Generate(request);
  ASSERT_TRUE(stream.status.ok());
  EXPECT_EQ(stream.joined.text(), "ABCDEXABC");
  EXPECT_EQ(unary.response.text(), "ABCDEXABC");
  EXPECT_EQ(stream.joined.finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(stream.joined.stop_match(), "DEFGHIJ");
  for (const v1::GenerateChunk& chunk : stream.chunks) {
    EXPECT_THAT(chunk.text(), ::testing::Not(HasSubstr("DEFG")));
  }
}

// A2: proto3 refuses text that is not UTF-8, so a broken delta would fail the call.
TEST(ServerRegressionTest, CharactersSplitOverTokensArriveWhole) {
  const std::string text = "a\xF0\x9F\x98\x80\xE4\xB8\xAD";
  std::vector<uint32_t> ids(text.begin(), text.end());
  for (uint32_t& id : ids) id &= 0xFF;
  TestServer server(WithRunner(engine::Scripted(1, ids)));
  for (uint32_t length = 1; length <= ids.size(); ++length) {
    const TestServer::Stream stream = server.GenerateStream(Ids({1}, length));
    ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
    EXPECT_EQ(stream.joined.text(),
              *server.tokenizer().Decode(absl::MakeConstSpan(ids).subspan(0, length), true));
    for (const v1::GenerateChunk& chunk : stream.chunks) {
      EXPECT_EQ(text::FakeTokenizer::ToValidUtf8(chunk.text()), chunk.text());
    }
  }
}

// A3: both slots are taken by streams whose clients leave; a third request must get in at once.
TEST(ServerRegressionTest, ClientsThatLeaveFreeTheirSlots) {
  TestServerOptions options = WithRunner({});
  options.runner.info.max_context_tokens = 100000;
  options.runner.info.blocks = 50000;
  options.engine.max_running = 2;
  TestServer server(std::move(options));
  {
    grpc::ClientContext contexts[2];
    std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> readers[2];
    for (int i = 0; i < 2; ++i) {
      readers[i] = server.stub().GenerateStream(&contexts[i], Ids({1}, 90000));
    }
    for (auto& reader : readers) {
      v1::GenerateChunk chunk;
      ASSERT_TRUE(reader->Read(&chunk));
    }
    for (grpc::ClientContext& context : contexts) context.TryCancel();
    for (auto& reader : readers) reader->Finish();
  }
  EXPECT_TRUE(server.Generate(Ids({2}, 2), absl::Seconds(20)).status.ok());
  server.ExpectIdle();
  const auto counts = server.counts();
  EXPECT_EQ(counts.of(engine::Terminal::kCancelled), 2u);
  EXPECT_LT(counts.generated, 90000u);
}

// A3 again: the client gives up everything, its connection too.
TEST(ServerRegressionTest, AnAbandonedConnectionFreesItsSlot) {
  TestServerOptions options = WithRunner({});
  options.runner.info.max_context_tokens = 100000;
  options.runner.info.blocks = 25000;
  TestServer server(std::move(options));
  auto channel = server.NewChannel({});
  auto stub = v1::GenerationService::NewStub(channel);
  auto context = std::make_unique<grpc::ClientContext>();
  auto reader = stub->GenerateStream(context.get(), Ids({1}, 90000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  reader.reset();
  context.reset();
  stub.reset();
  channel.reset();
  server.ExpectIdle();
  EXPECT_EQ(server.counts().of(engine::Terminal::kCancelled), 1u);
}

// A4
TEST(ServerRegressionTest, CancelsAtRandomTimesLeaveNothingBehind) {
  TestServerOptions options = WithRunner({});
  options.engine.max_running = 4;
  TestServer server(std::move(options));
  constexpr int kThreads = 8;
  constexpr int kCallsEach = 60;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&server, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < kCallsEach; ++i) {
        grpc::ClientContext context;
        const uint32_t last = static_cast<uint32_t>(random() % 200);
        const uint32_t tokens = static_cast<uint32_t>(1 + random() % 40);
        auto reader =
            server.stub().GenerateStream(&context, Ids({1, 2, 3, 4, 5, 6, 7, 8, last}, tokens));
        v1::GenerateChunk chunk;
        for (auto reads = random() % 6; reads > 0 && reader->Read(&chunk);) --reads;
        context.TryCancel();
        reader->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server.ExpectIdle();
  // Calls that were cancelled before they were sent never came; most did.
  EXPECT_GE(server.counts().received, static_cast<uint64_t>(kThreads * kCallsEach / 4));
  EXPECT_GT(server.counts().of(engine::Terminal::kCancelled), 0u);
  // One that is cancelled before its message came is no malformed message.
  EXPECT_EQ(server.counts().of(engine::Terminal::kInvalid), 0u);
  EXPECT_TRUE(server.Generate(Ids({1}, 5)).status.ok());
  server.ExpectIdle();
}

// A5
TEST(ServerRegressionTest, APromptBeyondThePoolIsRefusedAndTheNextProceeds) {
  TestServerOptions options = WithRunner({});
  options.runner.info.blocks = 16;
  options.runner.info.block_size = 4;
  TestServer server(std::move(options));
  const TestServer::Answer large = server.Generate(Ids(std::vector<uint32_t>(100, 1), 5));
  EXPECT_EQ(large.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(large.status.error_message(), HasSubstr("64"));
  EXPECT_TRUE(server.Generate(Ids({1, 2, 3, 4, 5}, 5), absl::Seconds(20)).status.ok());
  // One that fits but cannot grow ends by length.
  const TestServer::Answer full = server.Generate(Ids(std::vector<uint32_t>(60, 1), 50));
  ASSERT_TRUE(full.status.ok());
  EXPECT_EQ(full.response.finish_reason(), v1::FINISH_REASON_CONTEXT_LIMIT);
}

// A6
TEST(ServerRegressionTest, AFullQueueRefusesAtOnceAndTheAcceptedFinish) {
  engine::Gate gate;
  TestServerOptions options = WithRunner(engine::Gated(gate));
  options.engine.max_running = 1;
  options.engine.max_waiting = 4;
  TestServer server(std::move(options));
  std::vector<TestServer::Answer> answers(50);
  std::vector<std::thread> calls;
  for (TestServer::Answer& answer : answers) {
    calls.emplace_back([&server, &answer] { answer = server.Generate(Ids({1}, 3)); });
  }
  // Whoever is refused is refused while nothing moves.
  while (server.counts().of(engine::Terminal::kRejected) < 45) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  gate.Open();
  for (std::thread& call : calls) call.join();
  int accepted = 0;
  int refused = 0;
  for (const TestServer::Answer& answer : answers) {
    accepted += answer.status.ok();
    refused += answer.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  }
  EXPECT_EQ(accepted + refused, 50);
  EXPECT_GE(accepted, 4);
  EXPECT_EQ(server.counts().of(engine::Terminal::kRejected), static_cast<uint64_t>(refused));
  EXPECT_TRUE(server.Generate(Ids({1}, 3)).status.ok());
}

// A7
TEST(ServerRegressionTest, ASeededRequestDependsOnItselfAlone) {
  TestServer server;
  v1::GenerateRequest seeded = Ids({10, 11, 12}, 16);
  seeded.mutable_sampling()->set_temperature(0.8f);
  seeded.mutable_sampling()->set_seed(42);
  const std::vector<uint32_t> alone = IdsOf(server.Generate(seeded).response);
  ASSERT_EQ(alone.size(), 16u);
  for (const int neighbours : {1, 7, 31}) {
    std::vector<std::thread> others;
    for (int i = 0; i < neighbours; ++i) {
      others.emplace_back([&server, i] {
        v1::GenerateRequest other = Ids({static_cast<uint32_t>(i)}, 20);
        other.mutable_sampling()->set_temperature(0.8f);
        EXPECT_TRUE(server.Generate(other).status.ok());
      });
    }
    const TestServer::Answer answer = server.Generate(seeded);
    EXPECT_EQ(IdsOf(answer.response), alone) << neighbours;
    EXPECT_EQ(answer.response.seed(), 42u);
    for (std::thread& other : others) other.join();
  }
}

// A8
TEST(ServerRegressionTest, TinyTemperatureAndTopPAreGreedy) {
  TestServer server;
  v1::GenerateRequest request = Ids({4, 5, 6}, 12);
  const std::vector<uint32_t> greedy = IdsOf(server.Generate(request).response);
  request.mutable_sampling()->set_top_k(3);
  request.mutable_sampling()->set_top_p(0.5f);
  for (const float temperature : {0.0f, 1e-8f, 1e-4f}) {
    request.mutable_sampling()->set_temperature(temperature);
    EXPECT_EQ(IdsOf(server.Generate(request).response), greedy) << temperature;
  }
  request.clear_sampling();
  request.mutable_sampling()->set_temperature(1.0f);
  for (const float top_p : {1e-6f, 1e-4f}) {
    request.mutable_sampling()->set_top_p(top_p);
    EXPECT_EQ(IdsOf(server.Generate(request).response), greedy) << top_p;
  }
  EXPECT_EQ(server.counts().non_finite, 0u);
}

// A9
TEST(ServerRegressionTest, LogitBiasOutsideTheVocabularyHurtsNobody) {
  engine::Gate gate;
  TestServer server(WithRunner(engine::Gated(gate)));
  TestServer::Stream stream;
  std::thread call([&] { stream = server.GenerateStream(Ids({1, 2}, 100)); });
  gate.AwaitArrival(1);
  gate.Let(5);
  const std::pair<uint32_t, float> bad[] = {{191222, -100.0f},
                                            {258, 1.0f},
                                            {4294967295u, 1.0f},
                                            {3, std::numeric_limits<float>::quiet_NaN()},
                                            {3, std::numeric_limits<float>::infinity()}};
  for (const auto& [id, bias] : bad) {
    v1::GenerateRequest request = Ids({1}, 5);
    (*request.mutable_sampling()->mutable_logit_bias())[id] = bias;
    EXPECT_EQ(server.Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  gate.Open();
  call.join();
  ASSERT_TRUE(stream.status.ok());
  EXPECT_EQ(IdsOf(stream.joined), IdsOf(server.Generate(Ids({1, 2}, 100)).response));
  EXPECT_EQ(server.counts().of(engine::Terminal::kInvalid), 5u);
  server.ExpectIdle();
}

// A11
TEST(ServerRegressionTest, ThereIsOneBosAndTokenizeAgreesWithGenerate) {
  TestServer server;
  const struct {
    const char* text;
    std::optional<bool> add_special;
    uint32_t tokens;
  } cases[] = {
      {"hi", std::nullopt, 3}, {"<s>hi", std::nullopt, 3}, {"<s>hi", true, 4},
      {"hi", false, 2},        {"<s>hi", false, 3},        {"", std::nullopt, 1},
  };
  for (const auto& c : cases) {
    v1::TokenizeRequest tokenize;
    v1::GenerateRequest generate;
    tokenize.set_text(c.text);
    generate.set_text(c.text);
    generate.mutable_stop()->set_max_new_tokens(1);
    if (c.add_special) {
      tokenize.set_add_special_tokens(*c.add_special);
      generate.set_add_special_tokens(*c.add_special);
    }
    v1::TokenizeResponse tokens;
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, tokenize, &tokens).ok());
    EXPECT_EQ(tokens.ids_size(), static_cast<int>(c.tokens)) << c.text;
    EXPECT_EQ(server.Generate(generate).response.usage().prompt_tokens(), c.tokens) << c.text;
  }
}

// A15: pings on a connection that is quiet for long, while a call waits for its first byte. Strikes
// are counted per ping, so that a shorter interval and fewer seconds say the same.
TEST(ServerRegressionTest, KeepalivePingsDoNotEndAQuietCall) {
  engine::Gate gate;
  TestServer server(WithRunner(engine::Gated(gate)));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 6000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  auto stub = v1::GenerationService::NewStub(server.NewChannel(arguments));
  grpc::Status status;
  std::thread call([&] {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    status = stub->Generate(&context, Ids({1}, 1), &response);
  });
  gate.AwaitArrival(1);
  // A server that does not permit these pings ends the connection at the fourth.
  absl::SleepFor(absl::Seconds(27));
  gate.Open();
  call.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// A16: both kinds, waiting in the queue and running.
TEST(ServerRegressionTest, ADeadlineEndsTheWorkNotOnlyTheCall) {
  engine::Gate gate;
  TestServerOptions options = WithRunner(engine::Gated(gate));
  options.engine.max_running = 1;
  TestServer server(std::move(options));
  grpc::Status running;
  std::thread first(
      [&] { running = server.Generate(Ids({1}, 200), absl::Milliseconds(400)).status; });
  gate.AwaitArrival(1);
  EXPECT_EQ(server.Generate(Ids({2}, 200), absl::Milliseconds(50)).status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  first.join();
  EXPECT_EQ(running.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  absl::SleepFor(absl::Milliseconds(50));  // the server's clock may be a little behind the client's
  gate.Open();
  server.ExpectIdle();
  const auto counts = server.counts();
  EXPECT_EQ(counts.of(engine::Terminal::kDeadline), 2u);
  EXPECT_LE(counts.generated, 1u);  // the step that was held; none for the queued call
  EXPECT_EQ(counts.prompt_computed, 1u);
}

// A19
TEST(ServerRegressionTest, NanEndsItsOwnRequestAndIsNeverReusedByPrefix) {
  TestServerOptions options = WithRunner({});
  options.runner.poison = 77;
  TestServer server(std::move(options));
  const v1::GenerateRequest clean = Ids({1, 2, 3, 4, 5, 6}, 30);
  const std::vector<uint32_t> expected = IdsOf(server.Generate(clean).response);
  std::vector<uint32_t> poisoned_ids(20, 50);
  poisoned_ids[10] = 77;
  TestServer::Answer answers[3];
  std::thread calls[] = {
      std::thread([&] { answers[0] = server.Generate(clean); }),
      std::thread([&] { answers[1] = server.Generate(Ids(poisoned_ids, 5)); }),
      std::thread([&] { answers[2] = server.Generate(clean); }),
  };
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(answers[1].status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(IdsOf(answers[0].response), expected);
  EXPECT_EQ(IdsOf(answers[2].response), expected);
  // The same prefix, without the poisoned token.
  const std::vector<uint32_t> prefix(10, 50);
  const TestServer::Answer after = server.Generate(Ids(prefix, 4));
  ASSERT_TRUE(after.status.ok());
  EXPECT_EQ(after.response.usage().cached_tokens(), 0u);
  EXPECT_EQ(server.counts().of(engine::Terminal::kInternal), 1u);
  server.ExpectIdle();
}

}  // namespace
}  // namespace normserve::rpc
