// SPDX-License-Identifier: Apache-2.0
// See response_json.h.
#include "client/response_json.h"

#include <cmath>

#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

nlohmann::json ToJson(const v1::TokenAlternatives& alternatives) {
  return {{"token_ids", alternatives.token_ids()}, {"logprobs", alternatives.logprobs()}};
}

nlohmann::json ToJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"cached_tokens", usage.cached_tokens()}};
}

}  // namespace

const char* FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_EOS:
      return "eos";
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop_token";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop_string";
    case v1::FINISH_REASON_MAX_NEW_TOKENS:
      return "max_new_tokens";
    case v1::FINISH_REASON_CONTEXT_LIMIT:
      return "context_limit";
    default:
      return "unspecified";
  }
}

nlohmann::json ToJson(const v1::GenerateResponse& response) {
  nlohmann::json json = {{"text", response.text()},
                         {"token_ids", response.token_ids()},
                         {"finish_reason", FinishReasonName(response.finish_reason())},
                         {"usage", ToJson(response.usage())},
                         {"stop_match", response.stop_match()},
                         {"seed", response.seed()}};
  if (response.token_logprobs_size() > 0) json["token_logprobs"] = response.token_logprobs();
  for (const auto& alternatives : response.top_logprobs()) {
    json["top_logprobs"].push_back(ToJson(alternatives));
  }
  return json;
}

nlohmann::json ToJson(const v1::ItemScore& score) {
  nlohmann::json tokens = nlohmann::json::array();
  for (const v1::TokenScore& token : score.tokens()) {
    nlohmann::json entry = {{"token_id", token.token_id()}, {"is_argmax", token.is_argmax()}};
    entry["logprob"] = token.has_logprob() ? nlohmann::json(token.logprob()) : nlohmann::json();
    if (token.has_top_logprobs()) entry["top_logprobs"] = ToJson(token.top_logprobs());
    tokens.push_back(std::move(entry));
  }
  nlohmann::json json = {{"tokens", std::move(tokens)},
                         {"sum_logprob", score.sum_logprob()},
                         {"scored_tokens", score.scored_tokens()},
                         {"all_argmax", score.all_argmax()},
                         {"usage", ToJson(score.usage())}};
  json["perplexity"] = score.scored_tokens() > 0
                           ? nlohmann::json(std::exp(-score.sum_logprob() / score.scored_tokens()))
                           : nlohmann::json();
  return json;
}

void AppendChunk(const v1::GenerateChunk& chunk, v1::GenerateResponse* response) {
  response->mutable_text()->append(chunk.text());
  response->mutable_token_ids()->MergeFrom(chunk.token_ids());
  response->mutable_token_logprobs()->MergeFrom(chunk.token_logprobs());
  response->mutable_top_logprobs()->MergeFrom(chunk.top_logprobs());
  if (chunk.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
  response->set_finish_reason(chunk.finish_reason());
  *response->mutable_usage() = chunk.usage();
  response->set_stop_match(chunk.stop_match());
  response->set_seed(chunk.seed());
}

}  // namespace normserve::client
