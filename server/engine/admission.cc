// SPDX-License-Identifier: Apache-2.0
#include "engine/admission.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace normserve::engine {
namespace {

uint64_t PoolTokens(const RunnerInfo& info) {
  return static_cast<uint64_t>(info.blocks) * info.block_size;
}

absl::Status CheckLength(const Request& request, const RunnerInfo& info) {
  if (request.prompt.empty())
    return absl::InvalidArgumentError("prompt: 0 tokens, at least 1 needed");
  const uint64_t prompt = request.prompt.size();
  const uint64_t room_for = request.score_from ? 0 : 1;  // at least one new token
  const char* plus = request.score_from ? "" : " and at least 1 new token";
  const std::string allowed = absl::StrCat("; allowed: 1 to ", MaxSequenceTokens(info) - room_for);
  if (prompt + room_for > info.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", prompt, " tokens", plus, " exceed the model's context, max_context_tokens is ",
        info.max_context_tokens, allowed));
  }
  if (prompt + room_for > PoolTokens(info)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", prompt, " tokens", plus, " exceed the whole KV cache, which holds ",
        PoolTokens(info), " tokens (", info.blocks, " blocks of ", info.block_size, ")", allowed));
  }
  return absl::OkStatus();
}

// Alternatives of one request, at up to 9 bytes each: well below the 2 GiB at which protobuf cannot
// write an answer and gRPC ends the process.
constexpr uint64_t kMaxAlternatives = uint64_t{1} << 26;

absl::Status CheckAlternatives(const Request& request, const RunnerInfo& info) {
  const uint64_t prompt = request.prompt.size();
  const uint64_t rows =
      request.score_from
          ? prompt - std::min<uint64_t>(*request.score_from, prompt)
          : std::min<uint64_t>(request.stop.max_new_tokens, MaxSequenceTokens(info) - prompt);
  const uint64_t alternatives = rows * request.output.top_logprobs;
  if (alternatives <= kMaxAlternatives) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "top_logprobs: ", request.output.top_logprobs, " for up to ", rows, " tokens are ",
      alternatives, " alternatives; allowed: at most ", kMaxAlternatives, " per answer"));
}

absl::Status CheckId(const char* field, uint32_t id, const RunnerInfo& info) {
  if (id < info.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": token id ", id, ", allowed are [0, ", info.vocab_size, ")"));
}

}  // namespace

uint32_t MaxSequenceTokens(const RunnerInfo& info) {
  return static_cast<uint32_t>(std::min<uint64_t>(info.max_context_tokens, PoolTokens(info)));
}

absl::Status CheckRequest(const Request& request, const RunnerInfo& info, bool has_tokenizer) {
  NS_RETURN_IF_ERROR(CheckLength(request, info));
  NS_RETURN_IF_ERROR(CheckAlternatives(request, info));
  for (uint32_t id : request.prompt) NS_RETURN_IF_ERROR(CheckId("prompt", id, info));
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    NS_RETURN_IF_ERROR(CheckId("logit_bias", id, info));
  }
  if (request.score_from && *request.score_from == 0) {
    return absl::InvalidArgumentError(
        "score_from: 0, at least 1: nothing precedes the first token");
  }
  if (!has_tokenizer && (request.output.text || !request.stop.stop_strings.empty())) {
    return absl::InvalidArgumentError(
        "output.text, stop_strings: the model has no tokenizer, only token ids are allowed");
  }
  return absl::OkStatus();
}

}  // namespace normserve::engine
