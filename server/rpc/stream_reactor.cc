// SPDX-License-Identifier: Apache-2.0
#include "rpc/stream_reactor.h"

#include <memory>
#include <mutex>
#include <utility>

#include "rpc/delta_proto.h"
#include "rpc/status.h"

namespace normserve::rpc {

StreamReactor::StreamReactor(const ServedModel& model, const engine::Request& request,
                             CallRecord record)
    : EngineReactor(model, request, std::move(record)) {}

StreamReactor* StreamReactor::Start(const ServedModel& model, engine::Request request,
                                    CallRecord record) {
  const auto reactor = std::make_shared<StreamReactor>(model, request, std::move(record));
  reactor->Submit(std::move(request));
  return reactor.get();
}

void StreamReactor::Push(engine::Delta delta) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!delta.tokens.empty()) record_.FirstToken();
    if (!peer_gone_ && (!delta.tokens.empty() || !delta.text.empty() || delta.finished)) {
      AppendDelta(delta, shape_, &pending_);
      has_pending_ = has_pending_ || !delta.tokens.empty() || !delta.text.empty();
    }
    if (delta.finished) {
      ended_ = true;
      status_ = delta.status;
      record_.End(delta);
    }
    if (writing_ || !(has_pending_ || ended_)) return;
    writing_ = true;
  }
  WritePending();
}

void StreamReactor::WritePending() {
  bool last = false;
  bool write = false;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    chunk_.Clear();
    chunk_.Swap(&pending_);
    last = ended_;
    // The last chunk of a good end is always written: it has the finish reason.
    write = !peer_gone_ && (has_pending_ || (last && status_.ok()));
    status = status_;
    has_pending_ = false;
  }
  if (!last) {
    StartWrite(&chunk_);
  } else if (write) {
    StartWriteAndFinish(&chunk_, grpc::WriteOptions(), ToGrpc(status));
  } else {
    Finish(ToGrpc(status));
  }
}

void StreamReactor::OnWriteDone(bool ok) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ok) {
      peer_gone_ = true;
      has_pending_ = false;
    }
    if (!has_pending_ && !ended_) {
      writing_ = false;
      return;
    }
  }
  WritePending();
}

}  // namespace normserve::rpc
