// SPDX-License-Identifier: Apache-2.0
// One logits row to one decision. A pure function of the row and the task: the random number comes
// from (seed, position) alone, so no neighbour can change a request.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/runner.h"

namespace normserve::engine {

// Temperatures below this are greedy (float32 logits over it would overflow or be a coin flip of
// ulps).
inline constexpr float kGreedyTemperature = 1e-5f;

// Uniform in [0, 1) from a counter-based generator; the same everywhere.
double UniformAt(uint64_t seed, uint64_t position);

// `logits` [vocab] float32. Scratch is reused between calls (no allocation per row in steady
// state). Used by one thread; several samplers give the same results as one.
class Sampler {
 public:
  // Order: logit_bias, repetition, presence and frequency penalties, banned ids, temperature,
  // top_k, top_p, min_p, draw. Log-probabilities are those of the row as it came.
  RowResult Decide(absl::Span<const float> logits, const RowTask& task);

 private:
  void Adjust(absl::Span<const float> logits, const RowTask& task);
  void Penalize(const RowTask& task);
  uint32_t Draw(const SamplingParams& params, uint64_t position);
  uint32_t DrawFromAll(const SamplingParams& params, double uniform) const;
  void KeepTopK(size_t k);
  double KeepTopP(float top_p, double total);
  void Gather(size_t count, double mass);
  size_t SortFirst(size_t sorted, size_t count);
  void AddLogProbs(absl::Span<const float> logits, float max, uint32_t count, TokenOutput& token);

  std::vector<float> work_;       // adjusted logits, then weights
  std::vector<uint32_t> order_;   // candidate ids
  std::vector<uint32_t> counts_;  // per id: occurrences; all zero between calls
};

}  // namespace normserve::engine
