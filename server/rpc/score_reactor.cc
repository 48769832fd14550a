// SPDX-License-Identifier: Apache-2.0
#include "rpc/score_reactor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "rpc/delta_proto.h"
#include "rpc/status.h"

namespace normserve::rpc {
namespace {

void AppendScore(const engine::TokenOutput& token, bool alternatives, v1::ItemScore* out) {
  v1::TokenScore* score = out->add_tokens();
  score->set_token_id(token.id);
  score->set_logprob(token.logprob);
  score->set_is_argmax(token.is_argmax);
  if (alternatives) ToProto(token, score->mutable_top_logprobs());
  out->set_sum_logprob(out->sum_logprob() + static_cast<double>(token.logprob));
  out->set_all_argmax(out->all_argmax() && token.is_argmax);
  out->set_scored_tokens(out->scored_tokens() + 1);
}

// Faults of one item name it; the engine calls its tokens a prompt. Other ends are the whole call's.
absl::Status OfItem(size_t item, const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsInternal(status)) return status;
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "prompt: ");
  return absl::Status(status.code(), absl::StrCat("items[", item, "]: ", message));
}

}  // namespace

class ScoreReactor::ItemOutbox final : public engine::Outbox {
 public:
  ItemOutbox(std::shared_ptr<ScoreReactor> call, size_t item)
      : call_(std::move(call)), item_(item) {}
  void Push(engine::Delta delta) override { call_->Deliver(item_, delta); }

 private:
  const std::shared_ptr<ScoreReactor> call_;
  const size_t item_;
};

ScoreReactor::ScoreReactor(const ServedModel& model, std::vector<ScoreWork> work, CallRecord record,
                           v1::ScoreResponse* response)
    : model_(model),
      work_(std::move(work)),
      record_(std::move(record)),
      response_(response),
      calls_(work_.size()) {
  for (ScoreWork& one : work_) {
    v1::ItemScore* item = response_->add_items();
    item->set_all_argmax(true);
    if (one.unscored_tokens > 0) item->add_tokens()->set_token_id(one.request.prompt[0]);
    one.request.id = record_.id();
    one.request.deadline = record_.deadline();
  }
}

ScoreReactor* ScoreReactor::Start(const ServedModel& model, std::vector<ScoreWork> work,
                                  CallRecord record, v1::ScoreResponse* response) {
  auto reactor =
      std::make_shared<ScoreReactor>(model, std::move(work), std::move(record), response);
  reactor->self_ = reactor;
  reactor->SubmitMore();
  return reactor.get();
}

void ScoreReactor::SubmitMore() {
  while (true) {
    size_t item = 0;
    bool others_in_flight = false;
    std::shared_ptr<EngineCall> call;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (submitting_) return;
      if (!status_.ok() || next_ == work_.size() || in_flight_ >= kWindow) break;
      item = next_++;
      submitting_ = true;
      others_in_flight = in_flight_ > 0;
      ++in_flight_;
      calls_[item] = call = std::make_shared<EngineCall>(model_.engine);
    }
    // A copy: a full queue may ask for it again.
    const absl::Status status =
        call->Submit(work_[item].request, std::make_shared<ItemOutbox>(shared_from_this(), item));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      submitting_ = false;
    }
    if (!status.ok() && !GiveUpOn(item, status, others_in_flight)) break;
  }
  FinishIfDone();
}

bool ScoreReactor::GiveUpOn(size_t item, const absl::Status& status, bool others_in_flight) {
  bool failed = false;
  bool wait = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --in_flight_;
    calls_[item].reset();
    if (absl::IsResourceExhausted(status) && others_in_flight && status_.ok()) {
      // The queue is full, but each end of one of ours comes back here: wait for the next.
      --next_;
      wait = in_flight_ > 0;
    } else {
      FailLocked(OfItem(item, status));
      failed = true;
    }
  }
  if (failed) CancelAll();
  return !wait;
}

void ScoreReactor::FailLocked(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void ScoreReactor::Deliver(size_t item, const engine::Delta& delta) {
  bool failed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!delta.tokens.empty()) record_.FirstToken();
    v1::ItemScore* out = response_->mutable_items(static_cast<int>(item));
    const bool alternatives = work_[item].request.output.top_logprobs > 0;
    for (const engine::TokenOutput& token : delta.tokens) AppendScore(token, alternatives, out);
    if (!delta.finished) return;
    --in_flight_;
    calls_[item].reset();
    total_.queue_seconds = std::max(total_.queue_seconds, delta.queue_seconds);
    total_.usage.prompt_tokens += delta.usage.prompt_tokens;
    total_.usage.cached_tokens += delta.usage.cached_tokens;
    if (delta.status.ok()) {
      ToProto(delta.usage, out->mutable_usage());
    } else {
      failed = status_.ok();
      FailLocked(OfItem(item, delta.status));
    }
  }
  if (failed) CancelAll();
  SubmitMore();
  FinishIfDone();
}

void ScoreReactor::FinishIfDone() {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool all_submitted = next_ == work_.size() || !status_.ok();
    if (finished_ || submitting_ || !all_submitted || in_flight_ > 0) return;
    finished_ = true;
    status = status_;
    total_.status = status;
    record_.End(total_);
  }
  Finish(ToGrpc(status));
}

void ScoreReactor::CancelAll() {
  std::vector<std::shared_ptr<EngineCall>> calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls = calls_;
  }
  for (const auto& call : calls) {
    if (call != nullptr) call->Cancel();
  }
}

void ScoreReactor::OnCancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A passed deadline is the engine's to notice, so that it is counted as one.
    if (record_.CancelledByDeadline(absl::Now())) return;
    FailLocked(absl::CancelledError("the client cancelled the call"));
  }
  CancelAll();
  FinishIfDone();
}

void ScoreReactor::OnDone() {
  {
    // Finish orders this after all else; the mutex lets ThreadSanitizer see it.
    const std::lock_guard<std::mutex> lock(mutex_);
    record_.WriteLog();
  }
  self_.reset();  // may delete this
}

}  // namespace normserve::rpc
