// SPDX-License-Identifier: Apache-2.0
#include "engine/statistics.h"

#include <algorithm>

namespace normserve::engine {
namespace {

// Seconds between two stages, negative when either was not reached. The wall clock may step back.
double Between(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast()) return -1;
  return std::max(0.0, absl::ToDoubleSeconds(to - from));
}

EngineObserver::RequestTimes TimesOf(const Timeline& t, bool scoring, absl::Time end) {
  EngineObserver::RequestTimes times;
  times.queue = Between(t.submitted, t.scheduled);
  times.prefill = Between(t.scheduled, scoring ? end : t.first_token);
  times.decode = Between(t.first_token, end);
  times.time_to_first_token = Between(t.submitted, t.first_token);
  times.end_to_end = Between(t.submitted, end);
  return times;
}

}  // namespace

void Statistics::Planned(const scheduler::Plan& plan) const {
  for (uint32_t i = 0; i < plan.preempted; ++i) observer_->Preempted();
  uint32_t cached = 0;
  for (const scheduler::Admission& admission : plan.admitted) {
    if (admission.resumed) continue;  // its prompt was counted when it first came
    observer_->PrefixQueried(admission.prompt_tokens, admission.cached_tokens);
    cached += admission.cached_tokens;
  }
  if (plan.prompt_tokens + cached > 0) observer_->PromptTokens(plan.prompt_tokens, cached);
}

void Statistics::Generated(uint32_t count, absl::Time now, Timeline& timeline) const {
  observer_->GeneratedTokens(count);
  if (timeline.first_token == absl::InfinitePast()) {
    timeline.first_token = now;
    observer_->FirstToken(Between(timeline.submitted, now));
  } else {
    observer_->InterToken(Between(timeline.last_token, now));
  }
  // Right guesses come together with the token before them.
  for (uint32_t i = 1; i < count; ++i) observer_->InterToken(0);
  timeline.last_token = now;
}

void Statistics::Ended(const Generation& generation, Terminal terminal, absl::Time now) const {
  observer_->RequestEnded(terminal, TimesOf(generation.timeline(), generation.scoring(), now),
                          generation.usage());
}

void Statistics::StepDone(const EngineObserver::Step& step, const scheduler::Scheduler& scheduler,
                          uint32_t live) const {
  EngineObserver::Gauges gauges;
  gauges.running = scheduler.running();
  gauges.waiting = live - std::min(live, gauges.running);
  gauges.blocks_used = scheduler.pool().used();
  gauges.blocks_cached = scheduler.pool().cached();
  gauges.blocks_total = scheduler.pool().total();
  observer_->StepDone(step, gauges);
}

}  // namespace normserve::engine
