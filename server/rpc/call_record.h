// SPDX-License-Identifier: Apache-2.0
// What one call is apart from its message: request id, peer, deadline, clock; and its one log line.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "engine/request.h"

namespace normserve::rpc {

// Made in the method's handler, kept by the call's reactor. FirstToken from one thread; the rest
// from the thread that is ending the call.
class CallRecord {
 public:
  // Takes x-request-id of the call's metadata or makes one, and puts it in the initial metadata.
  // `log` outlives this; `method` is a literal.
  // `calls` is the service's: each record releases its share after the call's last use of anything
  // that the service was given, which orders (for ThreadSanitizer too, which does not see into
  // gRPC) all calls before the end of the service.
  CallRecord(grpc::CallbackServerContext* context, std::string_view method, const base::Log* log,
             std::shared_ptr<const void> calls);

  const std::string& id() const { return id_; }
  absl::Time deadline() const { return deadline_; }
  void set_model(std::string name) { model_ = std::move(name); }

  // Whether a cancellation seen now is the client's own deadline arriving first: client and server
  // measure it apart, and gRPC rounds the timeout that it sends up by as much as 1 %.
  bool CancelledByDeadline(absl::Time now) const;

  void FirstToken();  // the first call counts
  // The end of a call, told by its last delta, or by a status alone when there is none.
  void End(const engine::Delta& last);
  void End(const absl::Status& status);
  // The one line about the call. Reactors call it when gRPC is done with the call, never on the
  // engine thread: standard error may block.
  void WriteLog() const;

 private:
  std::shared_ptr<const void> calls_;
  const base::Log* log_;
  std::string_view method_;
  std::string id_;
  std::string peer_;
  std::string model_;
  absl::Time start_;
  absl::Time deadline_;
  absl::Time first_token_ = absl::InfiniteFuture();
  absl::Time end_ = absl::InfiniteFuture();
  engine::Delta last_;  // without text and tokens
};

std::string_view FinishReasonName(engine::FinishReason reason);

}  // namespace normserve::rpc
