// SPDX-License-Identifier: Apache-2.0
#include "rpc/engine_call.h"

#include <utility>

#include "absl/status/statusor.h"

namespace normserve::rpc {

absl::Status EngineCall::Submit(engine::Request request, std::shared_ptr<engine::Outbox> outbox) {
  // Not under the mutex: the first deltas may arrive before Submit returns.
  absl::StatusOr<engine::Engine::Handle> handle =
      engine_->Submit(std::move(request), std::move(outbox));
  if (!handle.ok()) return handle.status();
  bool cancelled = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    handle_ = *handle;
    cancelled = cancelled_;
  }
  if (cancelled) engine_->Cancel(*handle);
  return absl::OkStatus();
}

void EngineCall::Cancel() {
  std::optional<engine::Engine::Handle> handle;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle) engine_->Cancel(*handle);
}

}  // namespace normserve::rpc
