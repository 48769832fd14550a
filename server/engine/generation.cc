// SPDX-License-Identifier: Apache-2.0
#include "engine/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normserve::engine {
namespace {

bool Contains(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Generation::Generation(Submission submission, const text::Tokenizer* tokenizer, uint32_t max_tokens)
    : handle_(submission.handle),
      request_(std::move(submission.request)),
      outbox_(std::move(submission.outbox)),
      max_tokens_(max_tokens) {
  timeline_.submitted = submission.submitted;
  usage_.prompt_tokens = static_cast<uint32_t>(request_.prompt.size());
  const StopCriteria& stop = request_.stop;
  banned_ = stop.eos_token_ids;
  banned_.insert(banned_.end(), stop.stop_token_ids.begin(), stop.stop_token_ids.end());
  if (tokenizer == nullptr || scoring()) return;
  if (request_.output.text || !stop.stop_strings.empty()) {
    detokenizer_.emplace(*tokenizer, request_.output.skip_special_tokens);
  }
  if (!stop.stop_strings.empty()) {
    stop_matcher_.emplace(stop.stop_strings, stop.include_stop_string);
  }
}

RowTask Generation::Task(absl::Span<const uint32_t> tokens, uint32_t position) const {
  RowTask task;
  task.top_logprobs = request_.output.top_logprobs;
  task.logprob = scoring() || request_.output.logprobs || task.top_logprobs > 0;
  if (scoring()) {
    task.target = tokens[position + 1];
    return task;
  }
  task.sampling = &request_.sampling;
  task.prompt = tokens.subspan(0, usage_.prompt_tokens);
  task.generated = tokens.subspan(usage_.prompt_tokens, position + 1 - usage_.prompt_tokens);
  // Counts generated tokens only: a long prompt does not use min_new_tokens up.
  if (task.generated.size() < request_.stop.min_new_tokens) task.banned = banned_;
  return task;
}

bool Generation::Append(TokenOutput token, Delta& delta) {
  if (scoring()) return AppendScored(std::move(token), delta);
  const uint32_t id = token.id;
  ++usage_.completion_tokens;
  delta.tokens.push_back(std::move(token));
  AppendText(id, delta);
  if (delta.finish_reason == FinishReason::kNone) {
    const FinishReason reason = ReasonOf(id, delta);
    if (reason == FinishReason::kNone) return false;
    FlushText(delta);
    // The held rest can complete a stop string: then that is what ended the text.
    if (delta.finish_reason == FinishReason::kNone) delta.finish_reason = reason;
  }
  return true;
}

bool Generation::AppendScored(TokenOutput token, Delta& delta) {
  delta.tokens.push_back(std::move(token));
  return ++scored_ == usage_.prompt_tokens - *request_.score_from;
}

void Generation::AppendText(uint32_t id, Delta& delta) {
  if (detokenizer_) FeedText(detokenizer_->Append(id), delta);
}

void Generation::FeedText(const std::string& text, Delta& delta) {
  if (!stop_matcher_) {
    delta.text += text;
    return;
  }
  const bool allow = usage_.completion_tokens >= request_.stop.min_new_tokens;
  text::StopMatcher::Result result = stop_matcher_->Append(text, allow);
  if (request_.output.text) delta.text += result.emit;
  if (!result.matched) return;
  delta.finish_reason = FinishReason::kStopString;
  delta.stop_match = std::move(result.match);
}

void Generation::FlushText(Delta& delta) {
  if (!detokenizer_) return;
  FeedText(detokenizer_->Flush(), delta);
  if (delta.finish_reason == FinishReason::kStopString) {
    return;
  }
  if (stop_matcher_) {
    const std::string held = stop_matcher_->Flush();
    if (request_.output.text) delta.text += held;
  }
}

FinishReason Generation::ReasonOf(uint32_t id, Delta& delta) const {
  const StopCriteria& stop = request_.stop;
  if (usage_.completion_tokens > stop.min_new_tokens) {
    if (Contains(stop.eos_token_ids, id)) return FinishReason::kEos;
    if (Contains(stop.stop_token_ids, id)) {
      delta.stop_match = absl::StrCat(id);
      return FinishReason::kStopToken;
    }
  }
  if (usage_.completion_tokens >= stop.max_new_tokens) return FinishReason::kMaxNewTokens;
  const uint32_t total = usage_.prompt_tokens + usage_.completion_tokens;
  return total >= max_tokens_ ? FinishReason::kContextLimit : FinishReason::kNone;
}

}  // namespace normserve::engine
