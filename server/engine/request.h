// SPDX-License-Identifier: Apache-2.0
// What a caller asks of an engine and what it gets back: plain data, already checked and complete
// (no optional is left to a default). No torch, no grpc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace normserve::engine {

// Ranges are those of the proto comments; whoever builds a Request has checked them.
struct SamplingParams {
  float temperature = 0.0f;  // 0 = greedy
  uint32_t top_k = 0;        // 0 = all
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
};

struct StopCriteria {
  uint32_t max_new_tokens = 1;
  uint32_t min_new_tokens = 0;
  std::vector<std::string> stop_strings;
  std::vector<uint32_t> stop_token_ids;
  std::vector<uint32_t> eos_token_ids;  // empty when ignore_eos
  bool include_stop_string = false;
};

struct OutputOptions {
  bool text = false;  // decode; needs the engine's tokenizer
  bool skip_special_tokens = true;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
};

struct Request {
  std::string id;  // for logs
  std::vector<uint32_t> prompt;  // >= 1 token, each < vocab_size
  SamplingParams sampling;
  StopCriteria stop;
  OutputOptions output;
  int32_t priority = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // Scoring: nothing is generated; prompt tokens from this index on (>= 1) are scored.
  std::optional<uint32_t> score_from;
};

enum class FinishReason { kNone, kEos, kStopToken, kStopString, kMaxNewTokens, kContextLimit };

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
};

struct TokenOutput {
  uint32_t id = 0;
  float logprob = 0.0f;                // valid when logprobs were asked for, or when scoring
  bool is_argmax = false;              // scoring only
  std::vector<uint32_t> top_ids;       // [top_logprobs], most probable first
  std::vector<float> top_logprobs;     // [top_logprobs]
};

// One step's worth for one request, or its end.
struct Delta {
  std::string text;  // valid UTF-8, decided
  std::vector<TokenOutput> tokens;
  bool finished = false;  // the rest is valid only then, and nothing follows
  absl::Status status;    // not ok: cancelled, deadline, internal (NaN), ...
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_match;
  Usage usage;
  double queue_seconds = -1;  // from submission to the first step; negative: never ran
};

// Where a request's deltas go. Called on the engine thread, so it must not block; the last call has
// `finished`. Held by the engine until then.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void Push(Delta delta) = 0;
};

}  // namespace normserve::engine
