// SPDX-License-Identifier: Apache-2.0
// What the reactors of Generate and GenerateStream do alike: submit one request, cancel it, and write
// the call's log line. How deltas reach the client is theirs.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "absl/time/clock.h"
#include "engine/request.h"
#include "rpc/call_record.h"
#include "rpc/delta_proto.h"
#include "rpc/engine_call.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// Push: the engine thread; On...: gRPC's threads. The call owns the reactor until OnDone, the engine
// until the last Push.
template <typename GrpcReactor>  // grpc::ServerUnaryReactor or grpc::ServerWriteReactor<...>
class EngineReactor : public GrpcReactor,
                      public engine::Outbox,
                      public std::enable_shared_from_this<EngineReactor<GrpcReactor>> {
 public:
  // Once, after make_shared. What the engine refuses ends the call like any other last delta.
  void Submit(engine::Request request) {
    const std::shared_ptr<EngineReactor> self = this->shared_from_this();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      self_ = self;
    }
    const absl::Status status = call_.Submit(std::move(request), self);
    if (status.ok()) return;
    engine::Delta refused;
    refused.finished = true;
    refused.status = status;
    this->Push(std::move(refused));
  }

  void OnCancel() final {
    {
      // A passed deadline is the engine's to notice, so that it is counted as one.
      const std::lock_guard<std::mutex> lock(mutex_);
      if (record_.CancelledByDeadline(absl::Now())) return;
    }
    call_.Cancel();
  }

  void OnDone() final {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      record_.WriteLog();
    }
    self_.reset();  // may delete this
  }

 protected:
  EngineReactor(const ServedModel& model, const engine::Request& request, CallRecord record)
      : shape_{request.output.logprobs, request.output.top_logprobs > 0, request.sampling.seed},
        record_(std::move(record)),
        call_(model.engine) {}

  const OutputShape shape_;
  // Finish orders everything before OnDone already; the mutex lets ThreadSanitizer, which does not
  // see into gRPC, know it too.
  std::mutex mutex_;
  CallRecord record_;  // under mutex_

 private:
  EngineCall call_;
  std::shared_ptr<EngineReactor> self_;  // until OnDone
};

}  // namespace normserve::rpc
