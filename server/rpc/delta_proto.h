// SPDX-License-Identifier: Apache-2.0
// Engine deltas to messages. One template for GenerateResponse and GenerateChunk, so that a stream
// and a unary answer cannot differ.
#pragma once

#include "engine/request.h"
#include "normserve/v1/generation.pb.h"

namespace normserve::rpc {

v1::FinishReason ToProto(engine::FinishReason reason);
void ToProto(const engine::Usage& usage, v1::Usage* out);
void ToProto(const engine::TokenOutput& token, v1::TokenAlternatives* out);

// What of a request decides which fields its answer has.
struct OutputShape {
  bool logprobs = false;
  bool top_logprobs = false;
  uint64_t seed = 0;
};

// Appends to text and the per-token lists; sets the rest when the delta ends the request well.
template <typename Message>  // GenerateResponse or GenerateChunk
void AppendDelta(const engine::Delta& delta, const OutputShape& shape, Message* out) {
  out->mutable_text()->append(delta.text);
  for (const engine::TokenOutput& token : delta.tokens) {
    out->add_token_ids(token.id);
    if (shape.logprobs) out->add_token_logprobs(token.logprob);
    if (shape.top_logprobs) ToProto(token, out->add_top_logprobs());
  }
  if (!delta.finished || !delta.status.ok()) return;
  out->set_finish_reason(ToProto(delta.finish_reason));
  out->set_stop_match(delta.stop_match);
  out->set_seed(shape.seed);
  ToProto(delta.usage, out->mutable_usage());
}

}  // namespace normserve::rpc
