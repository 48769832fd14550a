// SPDX-License-Identifier: Apache-2.0
// Turns the engine's events into observer calls. Keeps no counts of its own.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "scheduler/scheduler.h"

namespace normserve::engine {

// Used by the engine thread.
class Statistics {
 public:
  // `observer` outlives this.
  explicit Statistics(EngineObserver* observer) : observer_(observer) {}

  // What a step's plan says, before it runs.
  void Planned(const scheduler::Plan& plan) const;
  // `count` > 0 tokens were generated for one request; moves its timeline on.
  void Generated(uint32_t count, absl::Time now, Timeline& timeline) const;
  void Drafted(uint32_t guesses, uint32_t accepted) const { observer_->Drafted(guesses, accepted); }
  void NonFiniteRow() const { observer_->NonFiniteRow(); }
  void Ended(const Generation& generation, Terminal terminal, absl::Time now) const;
  // `live`: requests accepted and not ended, wherever they wait.
  void StepDone(const EngineObserver::Step& step, const scheduler::Scheduler& scheduler,
                uint32_t live) const;

 private:
  EngineObserver* const observer_;
};

}  // namespace normserve::engine
