// SPDX-License-Identifier: Apache-2.0
// The Prometheus series of one model, by name, fed by its engine. Names and units are documented in
// the HELP texts of model_metrics.cc; docs and dashboards follow those.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <string>

#include "engine/engine.h"

namespace normserve::metrics {

// Every series exists from construction on, at 0, so that rates and sums never miss one. Any
// thread; an update takes at most a mutex that a scrape holds while it copies one histogram.
class ModelMetrics final : public engine::EngineObserver {
 public:
  // `registry` outlives this. Models of one registry share the families and differ in label
  // `model`.
  ModelMetrics(prometheus::Registry& registry, const std::string& model);

  void RequestReceived() override;
  void RequestEnded(engine::Terminal terminal, const RequestTimes& times,
                    const engine::Usage& usage) override;
  void PromptTokens(uint32_t computed, uint32_t cached) override;
  void GeneratedTokens(uint32_t count) override;
  void FirstToken(double seconds_since_submit) override;
  void InterToken(double seconds) override;
  void Preempted() override;
  void PrefixQueried(uint32_t tokens, uint32_t hit_tokens) override;
  void NonFiniteRow() override;
  void Drafted(uint32_t guesses, uint32_t accepted) override;
  void StepDone(const Step& step, const Gauges& gauges) override;

 private:
  struct Series {
    prometheus::Counter& requests_received;
    std::array<prometheus::Counter*, engine::kTerminalCount> requests_ended;  // by Terminal
    prometheus::Gauge& requests_running;
    prometheus::Gauge& requests_waiting;
    prometheus::Counter& preemptions;
    prometheus::Counter& prompt_tokens_computed;
    prometheus::Counter& prompt_tokens_cached;
    prometheus::Counter& generated_tokens;
    prometheus::Gauge& kv_blocks_used;
    prometheus::Gauge& kv_blocks_cached;
    prometheus::Gauge& kv_blocks_free;
    prometheus::Gauge& kv_cache_usage;
    prometheus::Counter& prefix_queried_tokens;
    prometheus::Counter& prefix_hit_tokens;
    prometheus::Counter& nonfinite_rows;
    prometheus::Counter& draft_tokens;
    prometheus::Counter& accepted_draft_tokens;
    std::array<prometheus::Counter*, engine::kRecordedCount> steps_by_graph;  // by Recorded
    prometheus::Histogram& time_to_first_token;
    prometheus::Histogram& inter_token;
    prometheus::Histogram& request_duration;
    prometheus::Histogram& request_queue;
    prometheus::Histogram& request_prefill;
    prometheus::Histogram& request_decode;
    prometheus::Histogram& request_prompt_tokens;
    prometheus::Histogram& request_generated_tokens;
    prometheus::Histogram& step_batch_size;
    prometheus::Histogram& step_tokens;
    prometheus::Histogram& step_duration;
  };
  static Series MakeSeries(prometheus::Registry& registry, const std::string& model);

  const Series series_;
};

}  // namespace normserve::metrics
