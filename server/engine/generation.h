// SPDX-License-Identifier: Apache-2.0
// One request in the engine: what it asked, what it has produced, and when it has to stop. It knows
// neither the scheduler nor the model; tokens go in, deltas come out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace normserve::engine {

// When a request reached its stages; unset ones are InfinitePast.
struct Timeline {
  absl::Time submitted = absl::InfinitePast();
  absl::Time scheduled = absl::InfinitePast();
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
};

// Used by the engine thread.
class Generation {
 public:
  // `tokenizer` may be null and outlives this. `max_tokens`: of prompt and output together.
  Generation(Submission submission, const text::Tokenizer* tokenizer, uint32_t max_tokens);

  uint64_t handle() const { return handle_; }
  // Without the prompt, which TakePrompt hands to the scheduler.
  const Request& request() const { return request_; }
  std::vector<uint32_t> TakePrompt() { return std::move(request_.prompt); }
  const std::shared_ptr<Outbox>& outbox() const { return outbox_; }
  bool scoring() const { return request_.score_from.has_value(); }
  // Whether there is anything to compute at all (a text of one token has nothing to score).
  bool empty() const { return scoring() && *request_.score_from >= usage_.prompt_tokens; }

  // What to do with the logits after `tokens` (prompt, generated, guesses) up to `position`.
  RowTask Task(absl::Span<const uint32_t> tokens, uint32_t position) const;

  // Takes one row's token and adds what became decided to `delta`. Returns true when it was the
  // last; then finish_reason, stop_match and the held text are in `delta` too.
  bool Append(TokenOutput token, Delta& delta);

  void SetCachedTokens(uint32_t tokens) { usage_.cached_tokens = tokens; }
  const Usage& usage() const { return usage_; }
  // The most that prompt and output together can come to.
  uint32_t max_tokens() const {
    const uint64_t wanted = uint64_t{usage_.prompt_tokens} + request_.stop.max_new_tokens;
    return static_cast<uint32_t>(std::min<uint64_t>(wanted, max_tokens_));
  }
  Timeline& timeline() { return timeline_; }
  const Timeline& timeline() const { return timeline_; }

 private:
  bool AppendScored(TokenOutput token, Delta& delta);
  void AppendText(uint32_t id, Delta& delta);
  void FeedText(const std::string& text, Delta& delta);
  void FlushText(Delta& delta);
  FinishReason ReasonOf(uint32_t id, Delta& delta) const;

  const uint64_t handle_;
  Request request_;
  std::shared_ptr<Outbox> outbox_;
  const uint32_t max_tokens_;
  std::vector<uint32_t> banned_;  // EOS and stop ids, while min_new_tokens holds
  std::optional<text::Detokenizer> detokenizer_;
  std::optional<text::StopMatcher> stop_matcher_;
  Usage usage_;
  Timeline timeline_;
  uint32_t scored_ = 0;
};

}  // namespace normserve::engine
