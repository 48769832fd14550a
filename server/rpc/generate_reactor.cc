// SPDX-License-Identifier: Apache-2.0
#include "rpc/generate_reactor.h"

#include <memory>
#include <mutex>
#include <utility>

#include "rpc/delta_proto.h"
#include "rpc/status.h"

namespace normserve::rpc {

GenerateReactor::GenerateReactor(const ServedModel& model, const engine::Request& request,
                                 CallRecord record, v1::GenerateResponse* response)
    : EngineReactor(model, request, std::move(record)), response_(response) {}

GenerateReactor* GenerateReactor::Start(const ServedModel& model, engine::Request request,
                                        CallRecord record, v1::GenerateResponse* response) {
  const auto reactor =
      std::make_shared<GenerateReactor>(model, request, std::move(record), response);
  reactor->Submit(std::move(request));
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

}  // namespace normserve::rpc
