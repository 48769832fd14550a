// SPDX-License-Identifier: Apache-2.0
#include "engine/sample_tasks.h"

#include "engine/sampler.h"

namespace normserve::engine {

using kernels::TokenAdjustment;

bool SampleTasks::Describe(absl::Span<const RowTask> tasks) {
  tasks_.clear();
  adjustments_.clear();
  if (vocab_ > kernels::kMaxSampledVocabulary) return false;
  for (const RowTask& task : tasks) {
    if (task.top_logprobs > static_cast<uint32_t>(kernels::kMaxSampledTop)) return false;
    kernels::SampleTask& out = tasks_.emplace_back();
    out.logprob = task.logprob ? 1 : 0;
    out.top_logprobs = static_cast<int32_t>(task.top_logprobs);
    if (task.sampling == nullptr) {
      out.target = static_cast<int32_t>(task.target);
      continue;
    }
    const SamplingParams& params = *task.sampling;
    out.uniform = UniformAt(params.seed, task.generated.size());
    out.temperature = params.temperature >= kGreedyTemperature ? params.temperature : 0.0f;
    out.top_k = params.top_k;
    out.top_p = params.top_p;
    out.min_p = params.min_p;
    out.repetition_penalty = params.repetition_penalty;
    out.presence_penalty = params.presence_penalty;
    out.frequency_penalty = params.frequency_penalty;
    out.first_adjustment = static_cast<int32_t>(adjustments_.size());
    AddAdjustments(task);
    out.adjustments = static_cast<int32_t>(adjustments_.size()) - out.first_adjustment;
  }
  return true;
}

// In order of first mention: bias, prompt, output, banned ids.
void SampleTasks::AddAdjustments(const RowTask& task) {
  const SamplingParams& params = *task.sampling;
  const size_t first = adjustments_.size();
  for (const auto& [id, bias] : params.logit_bias) {
    if (TokenAdjustment* adjustment = AdjustmentOf(id)) adjustment->bias = bias;
  }
  if (params.repetition_penalty != 1.0f) {
    for (absl::Span<const uint32_t> ids : {task.prompt, task.generated}) {
      for (uint32_t id : ids) {
        if (TokenAdjustment* adjustment = AdjustmentOf(id)) {
          adjustment->flags |= TokenAdjustment::kRepeated;
        }
      }
    }
  }
  if (params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
    for (uint32_t id : task.generated) {
      if (TokenAdjustment* adjustment = AdjustmentOf(id)) ++adjustment->generated;
    }
  }
  for (uint32_t id : task.banned) {
    if (TokenAdjustment* adjustment = AdjustmentOf(id)) {
      adjustment->flags |= TokenAdjustment::kBanned;
    }
  }
  for (size_t i = first; i < adjustments_.size(); ++i) {
    places_[static_cast<size_t>(adjustments_[i].id)] = 0;
  }
}

// The row's adjustment of this id, a new one at its first mention; null for ids outside the vocabulary
// (a config's EOS id may lie there). Valid until the next call.
TokenAdjustment* SampleTasks::AdjustmentOf(uint32_t id) {
  if (id >= vocab_) return nullptr;
  places_.resize(vocab_, 0);
  uint32_t& place = places_[id];
  if (place == 0) {
    adjustments_.emplace_back().id = static_cast<int32_t>(id);
    place = static_cast<uint32_t>(adjustments_.size());
  }
  return &adjustments_[place - 1];
}

RowResult FromSampled(const kernels::SampledRow& row, const RowTask& task) {
  RowResult result;
  result.finite = row.finite != 0;
  if (!result.finite) return result;
  TokenOutput& token = result.token;
  token.id = static_cast<uint32_t>(row.id);
  token.is_argmax = task.sampling == nullptr && row.is_argmax != 0;
  token.logprob = row.logprob;
  for (uint32_t i = 0; i < task.top_logprobs && row.top_ids[i] >= 0; ++i) {
    token.top_ids.push_back(static_cast<uint32_t>(row.top_ids[i]));
    token.top_logprobs.push_back(row.top_logprobs[i]);
  }
  return result;
}

}  // namespace normserve::engine
