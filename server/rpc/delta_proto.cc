// SPDX-License-Identifier: Apache-2.0
#include "rpc/delta_proto.h"

namespace normserve::rpc {

v1::FinishReason ToProto(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case engine::FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case engine::FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case engine::FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case engine::FinishReason::kMaxNewTokens:
      return v1::FINISH_REASON_MAX_NEW_TOKENS;
    case engine::FinishReason::kContextLimit:
      return v1::FINISH_REASON_CONTEXT_LIMIT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void ToProto(const engine::Usage& usage, v1::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_cached_tokens(usage.cached_tokens);
}

void ToProto(const engine::TokenOutput& token, v1::TokenAlternatives* out) {
  out->mutable_token_ids()->Add(token.top_ids.begin(), token.top_ids.end());
  out->mutable_logprobs()->Add(token.top_logprobs.begin(), token.top_logprobs.end());
}

}  // namespace normserve::rpc
