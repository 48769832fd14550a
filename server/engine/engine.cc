// SPDX-License-Identifier: Apache-2.0
// The door and the life of an engine; what happens inside is in step_loop.cc.
#include "engine/engine.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "engine/admission.h"
#include "engine/inbox.h"
#include "engine/step_loop.h"

namespace normserve::engine {

struct Engine::Impl {
  Impl(const EngineOptions& options, std::unique_ptr<Runner> runner,
       const text::Tokenizer* tokenizer, EngineObserver* observer_in, const base::Clock* clock_in)
      : has_tokenizer(tokenizer != nullptr),
        observer(observer_in),
        clock(clock_in != nullptr ? clock_in : &system_clock),
        inbox(options.max_waiting, options.max_waiting_tokens, clock),
        loop(options, std::move(runner), tokenizer, observer, clock, &inbox) {}

  const base::SystemClock system_clock;
  const bool has_tokenizer;
  EngineObserver* const observer;
  const base::Clock* const clock;
  Inbox inbox;
  StepLoop loop;
  std::thread thread;
};

Engine::Engine(std::string name, EngineOptions options, std::unique_ptr<Runner> runner,
               const text::Tokenizer* tokenizer, EngineObserver* observer, const base::Clock* clock)
    : impl_(std::make_unique<Impl>(options, std::move(runner), tokenizer, observer, clock)) {
  impl_->thread = std::thread([this] { impl_->loop.Run(); });
  const std::string thread_name = ("eng:" + name).substr(0, 15);  // the kernel's limit
  pthread_setname_np(impl_->thread.native_handle(), thread_name.c_str());
}

Engine::~Engine() {
  impl_->inbox.Stop();
  impl_->thread.join();
}

const RunnerInfo& Engine::runner_info() const { return impl_->loop.runner_info(); }

absl::StatusOr<Engine::Handle> Engine::Submit(Request request, std::shared_ptr<Outbox> outbox) {
  impl_->observer->RequestReceived();
  absl::Status status = CheckRequest(request, runner_info(), impl_->has_tokenizer);
  if (status.ok()) {
    absl::StatusOr<Handle> handle = impl_->inbox.Post(std::move(request), std::move(outbox));
    if (handle.ok()) return handle;
    status = handle.status();
  }
  impl_->observer->RequestEnded(TerminalOf(status), EngineObserver::RequestTimes(), Usage());
  return status;
}

void Engine::Cancel(Handle handle) { impl_->inbox.Cancel(handle); }

void Engine::Drain(absl::Time deadline) { impl_->inbox.Drain(deadline); }

}  // namespace normserve::engine
