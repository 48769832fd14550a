// SPDX-License-Identifier: Apache-2.0
#include "rpc/generate_reactor.h"

#include <utility>

#include "absl/time/clock.h"
#include "rpc/status.h"

namespace normserve::rpc {

GenerateReactor::GenerateReactor(const ServedModel& model, const engine::Request& request,
                                 CallRecord record, v1::GenerateResponse* response)
    : call_(model.engine),
      shape_{request.output.logprobs, request.output.top_logprobs > 0, request.sampling.seed},
      record_(std::move(record)),
      response_(response) {}

GenerateReactor* GenerateReactor::Start(const ServedModel& model, engine::Request request,
                                        CallRecord record, v1::GenerateResponse* response) {
  auto reactor = std::make_shared<GenerateReactor>(model, request, std::move(record), response);
  {
    const std::lock_guard<std::mutex> lock(reactor->mutex_);
    reactor->self_ = reactor;
  }
  const absl::Status status = reactor->call_.Submit(std::move(request), reactor);
  if (!status.ok()) {
    engine::Delta refused;
    refused.finished = true;
    refused.status = status;
    reactor->Push(std::move(refused));
  }
  return reactor.get();
}

void GenerateReactor::Push(engine::Delta delta) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!delta.tokens.empty()) record_.FirstToken();
    AppendDelta(delta, shape_, response_);
    if (!delta.finished) return;
    record_.End(delta);
  }
  Finish(ToGrpc(delta.status));
}

void GenerateReactor::OnCancel() {
  {
    // A passed deadline is the engine's to notice, so that it is counted as one.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (record_.CancelledByDeadline(absl::Now())) return;
  }
  call_.Cancel();
}

void GenerateReactor::OnDone() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_.WriteLog();
  }
  self_.reset();  // may delete this
}

}  // namespace normserve::rpc
