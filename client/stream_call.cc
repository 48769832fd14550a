// SPDX-License-Identifier: Apache-2.0
// See stream_call.h.
#include "client/stream_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normserve::client {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StreamCall::StreamCall(const ConnectionOptions& connection, uint64_t request, int64_t intended_ns,
                       uint32_t refusals, CallListener* listener)
    : listener_(listener) {
  PrepareContext(connection, &context_);
  record_.request = request;
  record_.intended_ns = intended_ns;
  record_.refusals = refusals;
}

void StreamCall::Start(Stub* stub, const v1::GenerateRequest* request) {
  record_.sent_ns = NowNs();
  if (record_.intended_ns == 0) record_.intended_ns = record_.sent_ns;
  stub->async()->GenerateStream(&context_, request, this);
  StartRead(&chunk_);
  StartCall();
}

void StreamCall::Count(int64_t now) {
  const int count = chunk_.token_ids_size();
  if (count == 0) return;
  record_.output_tokens += count;
  record_.token_ids.insert(record_.token_ids.end(), chunk_.token_ids().begin(), chunk_.token_ids().end());
  if (record_.first_token_ns == 0) {
    record_.first_token_ns = now;
    // Ids that came with the first one have no interval of their own.
  } else {
    record_.inter_token_ns.insert(record_.inter_token_ns.end(), count,
                                  (now - last_token_ns_) / count);
  }
  last_token_ns_ = now;
}

void StreamCall::OnReadDone(bool ok) {
  if (!ok) return;  // the end of the stream: OnDone follows
  Count(NowNs());
  if (chunk_.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    finished_ = true;
    record_.prompt_tokens = chunk_.usage().prompt_tokens();
    usage_tokens_ = chunk_.usage().completion_tokens();
  }
  StartRead(&chunk_);
}

void StreamCall::OnDone(const grpc::Status& status) {
  record_.end_ns = NowNs();
  record_.status = FromGrpc(status);
  // A stream that ends OK but short would flatter the server: count it as a failure of its own.
  if (status.ok() && (!finished_ || usage_tokens_ != record_.output_tokens)) {
    record_.status = absl::DataLossError(
        absl::StrCat("stream ended OK with ", record_.output_tokens, " ids; its usage says ",
                     finished_ ? absl::StrCat(usage_tokens_) : std::string("nothing")));
  }
  CallListener* const listener = listener_;
  listener->CallEnding(this);
  CallRecord record = std::move(record_);
  delete this;
  listener->CallEnded(std::move(record));
}

}  // namespace normserve::client
