// SPDX-License-Identifier: Apache-2.0
// Score items to engine requests: what is context, what is scored.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rpc/request_parser.h"

namespace normserve::rpc {
namespace {

constexpr int kMaxItems = 1024;
// Of a whole answer: protobuf cannot write a message beyond 2 GiB, and gRPC aborts on trying.
constexpr uint64_t kMaxAlternatives = uint64_t{1} << 26;

// All tokens, how many of them are only context, and the field that the others come from.
struct Span {
  std::vector<uint32_t> tokens;
  size_t context = 0;
  std::string scored_field;
};

absl::StatusOr<Span> ParseTextPair(const std::string& field, const v1::ScoreItem::TextPair& pair,
                                   std::optional<bool> add_special, const ServedModel& model) {
  Span span;
  NS_ASSIGN_OR_RETURN(const std::vector<uint32_t> context,
                      EncodedText(field + ".context", pair.context(), add_special, model));
  NS_ASSIGN_OR_RETURN(span.tokens,
                      EncodedText(field, pair.context() + pair.continuation(), add_special, model));
  span.context = context.size();
  span.scored_field = field + ".continuation";
  return span;
}

absl::StatusOr<Span> ParseTokenPair(const std::string& field, const v1::ScoreItem::TokenPair& pair,
                                    const ServedModel& model) {
  Span span;
  NS_ASSIGN_OR_RETURN(span.tokens, CheckedIds(field + ".context", pair.context(), model));
  span.context = span.tokens.size();
  span.scored_field = field + ".continuation";
  NS_ASSIGN_OR_RETURN(const std::vector<uint32_t> continuation,
                      CheckedIds(span.scored_field, pair.continuation(), model));
  span.tokens.insert(span.tokens.end(), continuation.begin(), continuation.end());
  return span;
}

absl::StatusOr<Span> ParseItem(const std::string& field, const v1::ScoreItem& item,
                               std::optional<bool> add_special, const ServedModel& model) {
  Span span;
  switch (item.item_case()) {
    case v1::ScoreItem::kTextPair:
      return ParseTextPair(field + ".text_pair", item.text_pair(), add_special, model);
    case v1::ScoreItem::kTokenPair:
      return ParseTokenPair(field + ".token_pair", item.token_pair(), model);
    case v1::ScoreItem::kText: {
      span.scored_field = field + ".text";
      NS_ASSIGN_OR_RETURN(span.tokens,
                          EncodedText(span.scored_field, item.text(), add_special, model));
      return span;
    }
    case v1::ScoreItem::kTokenIds: {
      span.scored_field = field + ".token_ids";
      NS_ASSIGN_OR_RETURN(span.tokens, CheckedIds(span.scored_field, item.token_ids(), model));
      return span;
    }
    case v1::ScoreItem::ITEM_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": absent; one of text_pair, token_pair, text or token_ids is required"));
}

}  // namespace

absl::StatusOr<std::vector<ScoreWork>> ParseScore(const v1::ScoreRequest& message,
                                                  const ServedModel& model) {
  if (message.items_size() == 0 || message.items_size() > kMaxItems) {
    return absl::InvalidArgumentError(
        absl::StrCat("items: ", message.items_size(), " items; allowed: 1 to ", kMaxItems));
  }
  NS_RETURN_IF_ERROR(CheckTopLogprobs("top_logprobs", message.top_logprobs(), model));
  NS_RETURN_IF_ERROR(CheckPriority(message.priority()));
  std::optional<bool> add_special;
  if (message.has_add_special_tokens()) add_special = message.add_special_tokens();

  uint64_t scored_tokens = 0;
  std::vector<ScoreWork> work;
  work.reserve(message.items_size());
  for (int i = 0; i < message.items_size(); ++i) {
    const std::string field = absl::StrCat("items[", i, "]");
    NS_ASSIGN_OR_RETURN(Span span, ParseItem(field, message.items(i), add_special, model));
    if (span.tokens.size() <= span.context) {
      return absl::InvalidArgumentError(
          absl::StrCat(span.scored_field, ": has no tokens to score; allowed: 1 or more"));
    }
    ScoreWork one;
    one.unscored_tokens = span.context == 0 ? 1 : 0;
    one.request.score_from = static_cast<uint32_t>(span.context == 0 ? 1 : span.context);
    one.request.prompt = std::move(span.tokens);
    one.request.output.logprobs = true;
    one.request.output.top_logprobs = message.top_logprobs();
    one.request.priority = message.priority();
    scored_tokens += one.request.prompt.size() - *one.request.score_from;
    work.push_back(std::move(one));
  }
  if (scored_tokens * message.top_logprobs() > kMaxAlternatives) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_logprobs: ", message.top_logprobs(), " for each of ", scored_tokens,
                     " tokens; allowed: at most ", kMaxAlternatives, " alternatives in a call"));
  }
  return work;
}

}  // namespace normserve::rpc
