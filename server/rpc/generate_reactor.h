// SPDX-License-Identifier: Apache-2.0
// One unary Generate call: gathers the engine's deltas and answers once.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "engine/request.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/call_record.h"
#include "rpc/delta_proto.h"
#include "rpc/engine_call.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// Push: the engine thread; On...: gRPC's threads. The call owns the reactor until OnDone, the
// engine until the last Push.
class GenerateReactor final : public grpc::ServerUnaryReactor,
                              public engine::Outbox,
                              public std::enable_shared_from_this<GenerateReactor> {
 public:
  // Submits the request; the reactor ends the call itself. `response` is the call's, alive until
  // OnDone.
  static GenerateReactor* Start(const ServedModel& model, engine::Request request,
                                CallRecord record, v1::GenerateResponse* response);

  GenerateReactor(const ServedModel& model, const engine::Request& request, CallRecord record,
                  v1::GenerateResponse* response);

  void Push(engine::Delta delta) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  EngineCall call_;
  const OutputShape shape_;
  // Finish orders Push before OnDone already; the mutex lets ThreadSanitizer, which does not see
  // into gRPC, know it too.
  std::mutex mutex_;
  CallRecord record_;
  v1::GenerateResponse* const response_;
  std::shared_ptr<GenerateReactor> self_;  // until OnDone
};

}  // namespace normserve::rpc
