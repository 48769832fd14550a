// SPDX-License-Identifier: Apache-2.0
// Score through gRPC against the fake model's own probabilities.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "rpc/test_server.h"

namespace normserve::rpc {
namespace {

using ::testing::HasSubstr;

// log softmax of the fake model's logits after `history`, at `token`.
double Oracle(const std::vector<uint32_t>& history, uint32_t token) {
  const std::vector<float> logits = engine::FakeRunner({}).Logits(history);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  return logits[token] - std::log(sum);
}

void AddIds(std::vector<uint32_t> ids, v1::ScoreRequest* request) {
  request->add_items()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
}

TEST(ScoreTest, EveryTokenIsScoredGivenThoseBeforeIt) {
  TestServer server;
  v1::ScoreRequest request;
  AddIds({5, 6, 7, 8}, &request);
  request.set_top_logprobs(2);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().Score(&context, request, &response).ok());
  ASSERT_EQ(response.items_size(), 1);
  const v1::ItemScore& item = response.items(0);
  ASSERT_EQ(item.tokens_size(), 4);
  EXPECT_FALSE(item.tokens(0).has_logprob());
  EXPECT_EQ(item.tokens(0).token_id(), 5u);
  double sum = 0;
  std::vector<uint32_t> history = {5};
  for (int i = 1; i < 4; ++i) {
    const uint32_t id = static_cast<uint32_t>(5 + i);
    EXPECT_EQ(item.tokens(i).token_id(), id);
    EXPECT_NEAR(item.tokens(i).logprob(), Oracle(history, id), 1e-5);
    EXPECT_EQ(item.tokens(i).top_logprobs().token_ids_size(), 2);
    EXPECT_EQ(item.tokens(i).is_argmax(), item.tokens(i).top_logprobs().token_ids(0) == id);
    sum += item.tokens(i).logprob();
    history.push_back(id);
  }
  EXPECT_DOUBLE_EQ(item.sum_logprob(), sum);
  EXPECT_EQ(item.scored_tokens(), 3u);
  EXPECT_EQ(item.usage().prompt_tokens(), 4u);
  EXPECT_EQ(item.usage().completion_tokens(), 0u);
}

TEST(ScoreTest, AGreedyContinuationIsAllArgmax) {
  TestServer server;
  const TestServer::Answer answer = server.Generate(Ids({5, 6}, 6));
  ASSERT_TRUE(answer.status.ok());
  v1::ScoreRequest request;
  auto* pair = request.add_items()->mutable_token_pair();
  for (const uint32_t id : {5, 6}) pair->mutable_context()->add_ids(id);
  *pair->mutable_continuation()->mutable_ids() = answer.response.token_ids();
  AddIds({9}, &request);  // one token: nothing to score
  v1::ScoreResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().Score(&context, request, &response).ok());
  EXPECT_TRUE(response.items(0).all_argmax());
  EXPECT_EQ(response.items(0).scored_tokens(), 6u);
  ASSERT_EQ(response.items(0).tokens_size(), 6);
  EXPECT_TRUE(response.items(0).tokens(0).has_logprob());
  EXPECT_EQ(response.items(1).tokens_size(), 1);
  EXPECT_EQ(response.items(1).scored_tokens(), 0u);
  EXPECT_EQ(response.items(1).sum_logprob(), 0);
  server.ExpectIdle();
}

// More items than the queue holds: they are handed over as places become free.
TEST(ScoreTest, ManyItemsDoNotOverflowTheQueue) {
  TestServerOptions options;
  options.engine.max_waiting = 4;
  TestServer server(std::move(options));
  v1::ScoreRequest request;
  for (uint32_t i = 0; i < 300; ++i) AddIds({i % 250, 1, i % 7}, &request);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.stub().Score(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.items_size(), 300);
  for (int i = 0; i < 300; ++i) {
    const uint32_t first = static_cast<uint32_t>(i) % 250;
    ASSERT_EQ(response.items(i).tokens_size(), 3) << i;
    EXPECT_NEAR(response.items(i).tokens(1).logprob(), Oracle({first}, 1), 1e-5) << i;
  }
  server.ExpectIdle();
}

TEST(ScoreTest, OneBadItemFailsTheCallAndLeavesNothingBehind) {
  TestServerOptions options;
  options.runner.poison = 13;
  TestServer server(std::move(options));
  v1::ScoreRequest request;
  for (uint32_t i = 0; i < 100; ++i) AddIds({i == 50 ? 13u : 12u, 1, 2, 3}, &request);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.stub().Score(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("items[50]: the model produced NaN"));
  server.ExpectIdle();
}

TEST(ScoreTest, AnItemThatCannotFitIsNamed) {
  TestServer server;
  const uint32_t context_tokens = server.engine().runner_info().max_context_tokens;
  v1::ScoreRequest request;
  for (uint32_t tokens : {3u, context_tokens + 1}) {
    AddIds(std::vector<uint32_t>(tokens, 7), &request);
  }
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.stub().Score(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("items[1]: " + std::to_string(context_tokens + 1) + " tokens exceed"));
  server.ExpectIdle();
}

// One item per step and a thousand items: the cancel comes long before the last.
TEST(ScoreTest, ACancelledCallEndsAllItsItems) {
  engine::Gate gate;
  TestServerOptions options;
  options.runner = engine::Gated(gate);
  options.engine.max_step_tokens = 4;
  TestServer server(std::move(options));
  v1::ScoreRequest request;
  for (uint32_t i = 0; i < 1000; ++i) AddIds({i % 250, i / 250, 2, 3}, &request);
  grpc::ClientContext context;
  grpc::Status status;
  v1::ScoreResponse response;
  std::thread call([&] { status = server.stub().Score(&context, request, &response); });
  gate.AwaitArrival(1);
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  while (server.counts().received > server.counts().ended_total()) {
    gate.Let(1);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GT(server.counts().of(engine::Terminal::kCancelled), 0u);
  EXPECT_LT(server.counts().received, 1000u);  // the rest was never submitted
  gate.Open();
  server.ExpectIdle();
}

}  // namespace
}  // namespace normserve::rpc
