// SPDX-License-Identifier: Apache-2.0
#include "metrics/model_metrics.h"

namespace normserve::metrics {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// Label `reason` of normserve_requests_ended_total, in the order of engine::Terminal.
constexpr std::array<const char*, engine::kTerminalCount> kReasons = {
    "stop",     "length",  "scored",   "cancelled", "deadline",
    "rejected", "invalid", "internal", "shutdown"};

// Label `graph` of normserve_step_graphs_total, in the order of engine::Recorded.
constexpr std::array<const char*, engine::kRecordedCount> kGraphs = {"none", "recorded", "replayed"};

// Half a millisecond to twenty minutes: a tiny model's step and a long generation fit one list.
Buckets SecondsBuckets() {
  return {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
          1,      2,     5,     10,    20,   60,   120,  300, 600, 1200};
}

Buckets PowersOfTwo(int count) {
  Buckets buckets;
  for (int i = 0; i < count; ++i) buckets.push_back(static_cast<double>(uint64_t{1} << i));
  return buckets;
}

// Makes the series of one model in one registry.
class SeriesMaker {
 public:
  SeriesMaker(prometheus::Registry& registry, const std::string& model)
      : registry_(registry), model_(model) {}

  prometheus::Counter& Counter(const char* name, const char* help, prometheus::Labels labels = {}) {
    labels["model"] = model_;
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
  }
  prometheus::Gauge& Gauge(const char* name, const char* help, prometheus::Labels labels = {}) {
    labels["model"] = model_;
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
  }
  prometheus::Histogram& Seconds(const char* name, const char* help) {
    return Histogram(name, help, SecondsBuckets());
  }
  prometheus::Histogram& Histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(
        {{"model", model_}}, buckets);
  }

 private:
  prometheus::Registry& registry_;
  const std::string& model_;
};

void ObserveIfReached(prometheus::Histogram& histogram, double seconds) {
  if (seconds >= 0) histogram.Observe(seconds);
}

constexpr char kEndedHelp[] =
    "Requests ended, by reason. Received = sum of the reasons + requests in flight.";
constexpr char kPromptHelp[] =
    "Prompt tokens taken in, by source: computed by the model, or cached (prefix cache).";
constexpr char kBlocksHelp[] =
    "KV cache blocks by state: used (owned by live requests), cached (free, but reusable by "
    "prefix), "
    "free.";

constexpr char kGraphsHelp[] =
    "Engine steps by CUDA graph: replayed, recorded in this step, or none (prefill, a shape seen for the first "
    "time, the CPU).";

std::array<prometheus::Counter*, engine::kTerminalCount> EndedByReason(SeriesMaker& make) {
  std::array<prometheus::Counter*, engine::kTerminalCount> ended{};
  for (int i = 0; i < engine::kTerminalCount; ++i) {
    ended[i] =
        &make.Counter("normserve_requests_ended_total", kEndedHelp, {{"reason", kReasons[i]}});
  }
  return ended;
}

std::array<prometheus::Counter*, engine::kRecordedCount> StepsByGraph(SeriesMaker& make) {
  std::array<prometheus::Counter*, engine::kRecordedCount> steps{};
  for (int i = 0; i < engine::kRecordedCount; ++i) {
    steps[i] = &make.Counter("normserve_step_graphs_total", kGraphsHelp, {{"graph", kGraphs[i]}});
  }
  return steps;
}

}  // namespace

ModelMetrics::Series ModelMetrics::MakeSeries(prometheus::Registry& registry,
                                              const std::string& model) {
  SeriesMaker make(registry, model);
  return Series{
      make.Counter("normserve_requests_received_total",
                   "Requests received, those refused included. Each item of a Score call is one."),
      EndedByReason(make),
      make.Gauge("normserve_requests_running", "Requests in the current step's batch."),
      make.Gauge("normserve_requests_waiting", "Requests accepted and not running."),
      make.Counter("normserve_preemptions_total",
                   "Running requests put back to the queue for want of KV blocks."),
      make.Counter("normserve_prompt_tokens_total", kPromptHelp, {{"source", "computed"}}),
      make.Counter("normserve_prompt_tokens_total", kPromptHelp, {{"source", "cached"}}),
      make.Counter("normserve_generated_tokens_total", "Tokens generated."),
      make.Gauge("normserve_kv_blocks", kBlocksHelp, {{"state", "used"}}),
      make.Gauge("normserve_kv_blocks", kBlocksHelp, {{"state", "cached"}}),
      make.Gauge("normserve_kv_blocks", kBlocksHelp, {{"state", "free"}}),
      make.Gauge("normserve_kv_cache_usage_ratio",
                 "Share of the KV cache's blocks that live requests own, 0 to 1."),
      make.Counter("normserve_prefix_cache_queried_tokens_total",
                   "Prompt tokens looked up in the prefix cache."),
      make.Counter("normserve_prefix_cache_hit_tokens_total",
                   "Prompt tokens found in the prefix cache."),
      make.Counter("normserve_nonfinite_rows_total",
                   "Logits rows with NaN or Inf; each ends its request with INTERNAL."),
      make.Counter("normserve_draft_tokens_total",
                   "Guesses at next tokens that were computed (--draft-tokens)."),
      make.Counter("normserve_draft_tokens_accepted_total",
                   "Guesses that were right; each is a generated token that needed no step of its own."),
      StepsByGraph(make),
      make.Seconds("normserve_time_to_first_token_seconds",
                   "From submission to a request's first token."),
      make.Seconds("normserve_inter_token_latency_seconds",
                   "Between two consecutive tokens of a request."),
      make.Seconds("normserve_request_duration_seconds",
                   "From submission to the end of a request that the engine accepted."),
      make.Seconds("normserve_request_queue_seconds", "From submission to a request's first step."),
      make.Seconds("normserve_request_prefill_seconds",
                   "From a request's first step to its first token."),
      make.Seconds("normserve_request_decode_seconds", "From a request's first token to its last."),
      make.Histogram("normserve_request_prompt_tokens", "Prompt tokens per request that ran.",
                     PowersOfTwo(18)),
      make.Histogram("normserve_request_generated_tokens", "Generated tokens per request that ran.",
                     PowersOfTwo(18)),
      make.Histogram("normserve_step_batch_size", "Sequences per engine step.", PowersOfTwo(11)),
      make.Histogram("normserve_step_tokens",
                     "Tokens per engine step, prefill and decode together.", PowersOfTwo(15)),
      make.Seconds("normserve_step_duration_seconds", "Duration of an engine step."),
  };
}

ModelMetrics::ModelMetrics(prometheus::Registry& registry, const std::string& model)
    : series_(MakeSeries(registry, model)) {}

void ModelMetrics::RequestReceived() { series_.requests_received.Increment(); }

void ModelMetrics::RequestEnded(engine::Terminal terminal, const RequestTimes& times,
                                const engine::Usage& usage) {
  series_.requests_ended[static_cast<size_t>(terminal)]->Increment();
  ObserveIfReached(series_.request_duration, times.end_to_end);
  ObserveIfReached(series_.request_queue, times.queue);
  ObserveIfReached(series_.request_prefill, times.prefill);
  ObserveIfReached(series_.request_decode, times.decode);
  if (times.queue < 0) return;  // never ran
  series_.request_prompt_tokens.Observe(usage.prompt_tokens);
  series_.request_generated_tokens.Observe(usage.completion_tokens);
}

void ModelMetrics::PromptTokens(uint32_t computed, uint32_t cached) {
  series_.prompt_tokens_computed.Increment(computed);
  series_.prompt_tokens_cached.Increment(cached);
}

void ModelMetrics::GeneratedTokens(uint32_t count) { series_.generated_tokens.Increment(count); }

void ModelMetrics::FirstToken(double seconds_since_submit) {
  series_.time_to_first_token.Observe(seconds_since_submit);
}

void ModelMetrics::InterToken(double seconds) { series_.inter_token.Observe(seconds); }

void ModelMetrics::Preempted() { series_.preemptions.Increment(); }

void ModelMetrics::PrefixQueried(uint32_t tokens, uint32_t hit_tokens) {
  series_.prefix_queried_tokens.Increment(tokens);
  series_.prefix_hit_tokens.Increment(hit_tokens);
}

void ModelMetrics::NonFiniteRow() { series_.nonfinite_rows.Increment(); }

void ModelMetrics::Drafted(uint32_t guesses, uint32_t accepted) {
  series_.draft_tokens.Increment(guesses);
  series_.accepted_draft_tokens.Increment(accepted);
}

void ModelMetrics::StepDone(const Step& step, const Gauges& gauges) {
  series_.requests_running.Set(gauges.running);
  series_.requests_waiting.Set(gauges.waiting);
  series_.kv_blocks_used.Set(gauges.blocks_used);
  series_.kv_blocks_cached.Set(gauges.blocks_cached);
  series_.kv_blocks_free.Set(static_cast<double>(gauges.blocks_total) - gauges.blocks_used -
                             gauges.blocks_cached);
  series_.kv_cache_usage.Set(
      gauges.blocks_total == 0 ? 0 : static_cast<double>(gauges.blocks_used) / gauges.blocks_total);
  if (step.sequences == 0) return;  // gauges only: nothing ran
  series_.steps_by_graph[static_cast<size_t>(step.recorded)]->Increment();
  series_.step_batch_size.Observe(step.sequences);
  series_.step_tokens.Observe(step.prefill_tokens + step.decode_tokens);
  series_.step_duration.Observe(step.seconds);
}

}  // namespace normserve::metrics
