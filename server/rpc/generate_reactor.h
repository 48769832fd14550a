// SPDX-License-Identifier: Apache-2.0
// One unary Generate call: gathers the engine's deltas and answers once.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "engine/request.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/call_record.h"
#include "rpc/engine_reactor.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// Threads and owners: see EngineReactor.
class GenerateReactor final : public EngineReactor<grpc::ServerUnaryReactor> {
 public:
  // Submits the request; the reactor ends the call itself. `response` is the call's, alive until
  // OnDone.
  static GenerateReactor* Start(const ServedModel& model, engine::Request request,
                                CallRecord record, v1::GenerateResponse* response);

  GenerateReactor(const ServedModel& model, const engine::Request& request, CallRecord record,
                  v1::GenerateResponse* response);

  void Push(engine::Delta delta) override;

 private:
  v1::GenerateResponse* const response_;
};

}  // namespace normserve::rpc
