// SPDX-License-Identifier: Apache-2.0
// One GenerateStream call: an Outbox on the engine's side, a write reactor on gRPC's.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "engine/request.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/call_record.h"
#include "rpc/engine_reactor.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// At most one write is in flight. What the engine delivers meanwhile gathers in one pending chunk,
// so a slow reader costs memory bounded by its own output and holds up nobody. Threads and owners:
// see EngineReactor.
class StreamReactor final : public EngineReactor<grpc::ServerWriteReactor<v1::GenerateChunk>> {
 public:
  // Submits the request; the reactor ends the call itself, also when the engine refuses.
  static StreamReactor* Start(const ServedModel& model, engine::Request request, CallRecord record);

  StreamReactor(const ServedModel& model, const engine::Request& request, CallRecord record);

  void Push(engine::Delta delta) override;
  void OnWriteDone(bool ok) override;

 private:
  // Writes what is pending, or ends the call. Only for whoever set writing_, without the mutex.
  void WritePending();

  // Under mutex_.
  bool writing_ = false;  // a write, or the end of the call, is under way
  bool has_pending_ = false;
  bool peer_gone_ = false;  // a write failed: nothing more is worth writing
  bool ended_ = false;      // the engine's last delta is in
  absl::Status status_;
  v1::GenerateChunk pending_;
  v1::GenerateChunk chunk_;  // being written; gRPC reads it until OnWriteDone
};

}  // namespace normserve::rpc
