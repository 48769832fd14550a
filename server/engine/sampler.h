// SPDX-License-Identifier: Apache-2.0
// One logits row to one decision. A pure function of the row and the task: the random number comes
// from (seed, position) alone, so no neighbour can change a request.
#pragma once

#include "absl/types/span.h"
#include "engine/runner.h"

namespace normserve::engine {

// Temperatures below this are greedy (float32 logits over it would overflow or be a coin flip of ulps).
inline constexpr float kGreedyTemperature = 1e-5f;

// Uniform in [0, 1) from a counter-based generator; the same everywhere.
double UniformAt(uint64_t seed, uint64_t position);

// `logits` [vocab] float32. Scratch is reused between calls (no allocation per row in steady state).
class Sampler {
 public:
  RowResult Decide(absl::Span<const float> logits, const RowTask& task);

 private:
  std::vector<float> work_;
  std::vector<uint32_t> order_;
};

}  // namespace normserve::engine
