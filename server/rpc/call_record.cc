// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_record.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace normserve::rpc {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";
constexpr size_t kMaxIdBytes = 128;

bool IsUsableId(const grpc::string_ref& id) {
  if (id.empty() || id.size() > kMaxIdBytes) return false;
  for (const char c : id) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

std::string RequestId(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kRequestIdKey);
  if (found != metadata.end() && IsUsableId(found->second)) {
    return std::string(found->second.data(), found->second.size());
  }
  absl::BitGen random;
  return absl::StrFormat("%016x%016x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

absl::Time Deadline(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace

std::string_view FinishReasonName(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNone:
      return "none";
    case engine::FinishReason::kEos:
      return "eos";
    case engine::FinishReason::kStopToken:
      return "stop_token";
    case engine::FinishReason::kStopString:
      return "stop_string";
    case engine::FinishReason::kMaxNewTokens:
      return "max_new_tokens";
    case engine::FinishReason::kContextLimit:
      return "context_limit";
  }
  return "unknown";
}

CallRecord::CallRecord(grpc::CallbackServerContext* context, std::string_view method,
                       const base::Log* log, std::shared_ptr<const void> calls)
    : calls_(std::move(calls)),
      log_(log),
      method_(method),
      id_(RequestId(*context)),
      peer_(context->peer()),
      start_(absl::Now()),
      deadline_(Deadline(*context)) {
  context->AddInitialMetadata(kRequestIdKey, id_);
}

bool CallRecord::CancelledByDeadline(absl::Time now) const {
  if (deadline_ == absl::InfiniteFuture()) return false;
  // gRPC sends 3 significant digits of the timeout, rounded up; the rest is transit.
  const absl::Duration total = deadline_ - start_;
  absl::Duration slack = absl::Milliseconds(1);
  for (absl::Duration scale = absl::Seconds(1); scale <= total && scale < absl::Hours(24);
       scale *= 10) {
    slack *= 10;
  }
  return now + slack + absl::Milliseconds(20) >= deadline_;
}

void CallRecord::FirstToken() {
  if (first_token_ == absl::InfiniteFuture()) first_token_ = absl::Now();
}

void CallRecord::End(const engine::Delta& last) {
  end_ = absl::Now();
  last_.status = last.status;
  last_.finish_reason = last.finish_reason;
  last_.usage = last.usage;
  last_.queue_seconds = last.queue_seconds;
}

void CallRecord::End(const absl::Status& status) {
  engine::Delta last;
  last.status = status;
  End(last);
}

void CallRecord::WriteLog() const {
  // -1: no token came.
  const double first =
      first_token_ == absl::InfiniteFuture() ? -1 : absl::ToDoubleSeconds(first_token_ - start_);
  const absl::Status& status = last_.status;
  log_->Write(absl::IsInternal(status) ? base::LogLevel::kError : base::LogLevel::kInfo, "request",
              {{"request_id", id_},
               {"model", model_},
               {"method", method_},
               {"status", absl::StatusCodeToString(status.code())},
               {"message", std::string(status.message())},
               {"finish_reason", FinishReasonName(last_.finish_reason)},
               {"prompt_tokens", last_.usage.prompt_tokens},
               {"completion_tokens", last_.usage.completion_tokens},
               {"cached_tokens", last_.usage.cached_tokens},
               {"queue_s", last_.queue_seconds},
               {"ttft_s", first},
               {"e2e_s", absl::ToDoubleSeconds(end_ - start_)},
               {"peer", peer_}});
}

}  // namespace normserve::rpc
