// SPDX-License-Identifier: Apache-2.0
// One GenerateStream call of a load run, on gRPC's callback threads: no thread of its own, so that
// a hundred streams cost the machine that also runs the server little.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/connection.h"

namespace normserve::client {

// Monotonic; only differences mean anything.
int64_t NowNs();

// What one call measured. Times are NowNs() values, 0 = never.
struct CallRecord {
  int64_t intended_ns = 0;  // when it should have been sent; the closed loop's is sent_ns
  int64_t sent_ns = 0;
  int64_t first_token_ns = 0;
  int64_t end_ns = 0;
  uint64_t request = 0;        // which of the run's requests, from 0
  uint32_t refusals = 0;       // closed loop: of its worker in a row, before this call
  uint32_t prompt_tokens = 0;  // from the server's usage
  uint32_t output_tokens = 0;  // ids received
  // Nanoseconds between tokens; a message with k ids, t after the one before, gives k samples of
  // t/k.
  std::vector<int64_t> inter_token_ns;
  std::vector<uint32_t> token_ids;
  absl::Status status;
};

class StreamCall;

// Hears of calls, on gRPC's threads.
class CallListener {
 public:
  virtual ~CallListener() = default;
  // The call is about to be deleted: forget it.
  virtual void CallEnding(StreamCall* call) = 0;
  // It is gone, and with it its hold on the channel: had it any left, the last stub's owner could
  // leave the channel to be destroyed on the very gRPC thread that its destructor joins.
  virtual void CallEnded(CallRecord record) = 0;
};

// Made by new, deletes itself at its end. Cancel: any thread, until CallEnding.
class StreamCall final : public grpc::ClientReadReactor<v1::GenerateChunk> {
 public:
  // `listener` and what Start takes outlive the call.
  StreamCall(const ConnectionOptions& connection, uint64_t request, int64_t intended_ns, uint32_t refusals,
             CallListener* listener);
  void Start(Stub* stub, const v1::GenerateRequest* request);
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void Count(int64_t now);

  grpc::ClientContext context_;
  v1::GenerateChunk chunk_;
  CallRecord record_;
  int64_t last_token_ns_ = 0;
  uint32_t usage_tokens_ = 0;
  bool finished_ = false;  // the last chunk came
  CallListener* listener_;
};

}  // namespace normserve::client
