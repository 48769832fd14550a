// SPDX-License-Identifier: Apache-2.0
// One request's link to its engine: joins Submit's answer with a cancellation that may come before,
// during or after it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "engine/engine.h"

namespace normserve::rpc {

// Any thread. The engine outlives it.
class EngineCall {
 public:
  explicit EngineCall(engine::Engine* engine) : engine_(engine) {}

  // Once. After a failure nothing reaches `outbox`.
  absl::Status Submit(engine::Request request, std::shared_ptr<engine::Outbox> outbox);
  // The request ends within one step; a no-op when it has.
  void Cancel();

 private:
  engine::Engine* const engine_;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::optional<engine::Engine::Handle> handle_;
};

}  // namespace normserve::rpc
