// SPDX-License-Identifier: Apache-2.0
// Messages to engine requests: every limit and parameter of the proto comments is checked here,
// prompts are encoded, and absent fields take their defaults. What depends on the engine's state
// (context, KV pool, queue) is the engine's to check, in Submit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// Pure functions of the message and the model (but for a fresh seed). INVALID_ARGUMENT names field,
// value and allowed range; FAILED_PRECONDITION names the missing tokenizer. id and deadline are
// left to the caller.
absl::StatusOr<engine::Request> ParseGenerate(const v1::GenerateRequest& message,
                                              const ServedModel& model);

// One item of a Score call.
struct ScoreWork {
  engine::Request request;
  // Leading prompt tokens that are returned without a score: 1 when the item's first token is the
  // first of all and part of what is asked for, else 0.
  uint32_t unscored_tokens = 0;
};
absl::StatusOr<std::vector<ScoreWork>> ParseScore(const v1::ScoreRequest& message,
                                                  const ServedModel& model);

// `field` names the ids in errors.
absl::StatusOr<std::vector<uint32_t>> CheckedIds(std::string_view field, const v1::TokenIds& ids,
                                                 const ServedModel& model);
// Encodes as Generate does. FAILED_PRECONDITION without a tokenizer.
absl::StatusOr<std::vector<uint32_t>> EncodedText(std::string_view field, std::string_view text,
                                                  std::optional<bool> add_special,
                                                  const ServedModel& model);
// OK when the model has a tokenizer; `what` says what needs it.
absl::Status NeedsTokenizer(std::string_view what, const ServedModel& model);
absl::Status CheckPriority(std::optional<int32_t> priority);
absl::Status CheckTopLogprobs(std::string_view field, uint32_t value, const ServedModel& model);

// sampling_parser.cc. `prompt_tokens` is for generation_config.json's max_length.
absl::StatusOr<engine::SamplingParams> ParseSampling(const v1::SamplingParams& message,
                                                     const ServedModel& model);
absl::StatusOr<engine::StopCriteria> ParseStop(const v1::StopCriteria& message,
                                               size_t prompt_tokens, const ServedModel& model);

}  // namespace normserve::rpc
