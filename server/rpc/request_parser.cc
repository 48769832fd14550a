// SPDX-License-Identifier: Apache-2.0
#include "rpc/request_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/string_view.h"

namespace normserve::rpc {
namespace {

using base::Absl;

constexpr int32_t kMaxPriority = 100;

absl::StatusOr<std::vector<uint32_t>> ParsePrompt(const v1::GenerateRequest& message,
                                                  const ServedModel& model) {
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText: {
      std::optional<bool> add_special;
      if (message.has_add_special_tokens()) add_special = message.add_special_tokens();
      return EncodedText("text", message.text(), add_special, model);
    }
    case v1::GenerateRequest::kTokenIds:
      return CheckedIds("token_ids", message.token_ids(), model);
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: absent; one of text or token_ids is required");
}

absl::StatusOr<engine::OutputOptions> ParseOutput(const v1::OutputOptions& message,
                                                  const ServedModel& model) {
  engine::OutputOptions output;
  output.top_logprobs = message.top_logprobs();
  NS_RETURN_IF_ERROR(CheckTopLogprobs("output.top_logprobs", output.top_logprobs, model));
  output.logprobs = message.logprobs() || output.top_logprobs > 0;
  output.skip_special_tokens = !message.has_skip_special_tokens() || message.skip_special_tokens();
  output.text = model.tokenizer != nullptr && !message.omit_text();
  return output;
}

}  // namespace

absl::Status NeedsTokenizer(std::string_view what, const ServedModel& model) {
  if (model.tokenizer != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      Absl(what), ": model '", model.card.name,
      "' has no tokenizer (its folder has no tokenizer.json, tokenizer.model or vocab.json with "
      "merges.txt); send token_ids"));
}

absl::StatusOr<std::vector<uint32_t>> CheckedIds(std::string_view field, const v1::TokenIds& ids,
                                                 const ServedModel& model) {
  const uint32_t vocab_size = model.engine->runner_info().vocab_size;
  for (int i = 0; i < ids.ids_size(); ++i) {
    if (ids.ids(i) >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(Absl(field), ".ids[", i, "]: ", ids.ids(i),
                                                     "; allowed: 0 to ", vocab_size - 1));
    }
  }
  return std::vector<uint32_t>(ids.ids().begin(), ids.ids().end());
}

namespace {

// Encoding runs on gRPC's threads, where a very long text would hold up other calls. No text beyond
// this fits the context: a token of ordinary text has about 4 bytes.
size_t MaxTextBytes(const ServedModel& model) {
  constexpr size_t kLeast = size_t{1} << 20;
  constexpr size_t kBytesPerToken = 64;
  return std::max(kLeast, kBytesPerToken * model.engine->runner_info().max_context_tokens);
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> EncodedText(std::string_view field, std::string_view text,
                                                  std::optional<bool> add_special,
                                                  const ServedModel& model) {
  NS_RETURN_IF_ERROR(NeedsTokenizer(field, model));
  const size_t limit = MaxTextBytes(model);
  if (text.size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(field), ": ", text.size(), " bytes; allowed: at most ", limit));
  }
  absl::StatusOr<std::vector<uint32_t>> ids = model.tokenizer->EncodePrompt(text, add_special);
  if (!ids.ok()) {
    return absl::Status(ids.status().code(),
                        absl::StrCat(Absl(field), ": ", ids.status().message()));
  }
  const uint32_t vocab_size = model.engine->runner_info().vocab_size;
  for (const uint32_t id : *ids) {
    if (id >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(Absl(field), ": its token ", id, " ('",
                                                     model.tokenizer->Piece(id),
                                                     "') is not one of the model's ", vocab_size));
    }
  }
  return ids;
}

absl::Status CheckPriority(std::optional<int32_t> priority) {
  if (priority && (*priority < -kMaxPriority || *priority > kMaxPriority)) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority: ", *priority, "; allowed: -", kMaxPriority, " to ", kMaxPriority));
  }
  return absl::OkStatus();
}

absl::Status CheckTopLogprobs(std::string_view field, uint32_t value, const ServedModel& model) {
  const uint32_t vocab_size = model.engine->runner_info().vocab_size;
  if (value <= vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(field), ": ", value, "; allowed: 0 to ", vocab_size, " (the vocabulary)"));
}

absl::StatusOr<engine::Request> ParseGenerate(const v1::GenerateRequest& message,
                                              const ServedModel& model) {
  engine::Request request;
  // The cheap checks first: a prompt may be megabytes of text.
  NS_ASSIGN_OR_RETURN(request.sampling, ParseSampling(message.sampling(), model));
  NS_ASSIGN_OR_RETURN(request.output, ParseOutput(message.output(), model));
  if (message.has_priority()) {
    NS_RETURN_IF_ERROR(CheckPriority(message.priority()));
    request.priority = message.priority();
  }
  if (message.has_truncate_prompt_tokens() && message.truncate_prompt_tokens() == 0) {
    return absl::InvalidArgumentError("truncate_prompt_tokens: 0; allowed: 1 or more");
  }
  NS_ASSIGN_OR_RETURN(request.prompt, ParsePrompt(message, model));
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("prompt: has no tokens; allowed: 1 or more");
  }
  if (message.has_truncate_prompt_tokens() &&
      request.prompt.size() > message.truncate_prompt_tokens()) {
    request.prompt.erase(request.prompt.begin(),
                         request.prompt.end() - message.truncate_prompt_tokens());
  }
  NS_ASSIGN_OR_RETURN(request.stop, ParseStop(message.stop(), request.prompt.size(), model));
  return request;
}

}  // namespace normserve::rpc
