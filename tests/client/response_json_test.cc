// SPDX-License-Identifier: Apache-2.0
// Tests of client/response_json.h.
#include "client/response_json.h"

#include <cmath>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

TEST(AppendChunk, JoinsDeltasAndTakesTheEndFromTheLast) {
  v1::GenerateResponse response;
  v1::GenerateChunk chunk;
  chunk.set_text("In");
  chunk.add_token_ids(4);
  chunk.add_token_logprobs(-1);
  AppendChunk(chunk, &response);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  chunk.Clear();
  chunk.set_text(" the");
  chunk.add_token_ids(5);
  chunk.add_token_ids(6);
  chunk.set_finish_reason(v1::FINISH_REASON_EOS);
  chunk.mutable_usage()->set_completion_tokens(3);
  chunk.set_seed(1ull << 60);
  AppendChunk(chunk, &response);
  const nlohmann::json json = ToJson(response);
  EXPECT_EQ(json["text"], "In the");
  EXPECT_EQ(json["token_ids"], nlohmann::json({4, 5, 6}));
  EXPECT_EQ(json["finish_reason"], "eos");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  EXPECT_EQ(json["seed"], 1ull << 60);
  EXPECT_EQ(json["token_logprobs"].size(), 1u);
}

TEST(ScoreJson, PerplexityIsOfScoredTokensAndNullWithoutAny) {
  v1::ItemScore score;
  score.add_tokens()->set_token_id(3);
  EXPECT_TRUE(ToJson(score)["perplexity"].is_null());
  EXPECT_TRUE(ToJson(score)["tokens"][0]["logprob"].is_null());
  score.set_scored_tokens(2);
  score.set_sum_logprob(-4);
  EXPECT_DOUBLE_EQ(ToJson(score)["perplexity"].get<double>(), std::exp(2.0));
}

}  // namespace
}  // namespace normserve::client
