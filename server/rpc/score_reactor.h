// SPDX-License-Identifier: Apache-2.0
// One Score call: each item is an engine request of its own; the answer is sent when all have
// ended.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/call_record.h"
#include "rpc/engine_call.h"
#include "rpc/request_parser.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// At most kWindow items are with the engine at a time, so that one large call neither fills the
// queue nor fails on it. The first failure cancels the rest and is the call's status. Any thread
// may deliver.
class ScoreReactor final : public grpc::ServerUnaryReactor,
                           public std::enable_shared_from_this<ScoreReactor> {
 public:
  // The reactor ends the call itself. `response` is the call's, alive until OnDone.
  static ScoreReactor* Start(const ServedModel& model, std::vector<ScoreWork> work,
                             CallRecord record, v1::ScoreResponse* response);

  ScoreReactor(const ServedModel& model, std::vector<ScoreWork> work, CallRecord record,
               v1::ScoreResponse* response);

  void OnCancel() override;
  void OnDone() override;

 private:
  static constexpr size_t kWindow = 32;
  class ItemOutbox;

  void Deliver(size_t item, const engine::Delta& delta);
  // Gives the engine what the window allows. One thread at a time is in it; others leave at once.
  void SubmitMore();
  // Marks item `item` as failed to start; false when it is to be tried again later.
  bool GiveUpOn(size_t item, const absl::Status& status, bool others_in_flight);
  void FailLocked(const absl::Status& status);
  void FinishIfDone();
  void CancelAll();

  const ServedModel& model_;
  std::vector<ScoreWork> work_;
  CallRecord record_;
  v1::ScoreResponse* const response_;
  std::shared_ptr<ScoreReactor> self_;  // until OnDone

  std::mutex mutex_;
  std::vector<std::shared_ptr<EngineCall>>
      calls_;  // per item; null before its turn and after its end
  size_t next_ = 0;
  size_t in_flight_ = 0;
  bool submitting_ = false;
  bool finished_ = false;
  absl::Status status_;
  engine::Delta total_;  // usage of all items and the longest wait, for the log
};

}  // namespace normserve::rpc
