// SPDX-License-Identifier: Apache-2.0
// What the engine needs of a model: run one batch and decide its rows. Implemented by ModelRunner
// (torch) and by the fake runner of the tests. No torch here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/request.h"
#include "scheduler/batch.h"

namespace normserve::engine {

// What to do with one logits row.
struct RowTask {
  // Sampling: the request's parameters and tokens so far; null when scoring.
  const SamplingParams* sampling = nullptr;
  absl::Span<const uint32_t> prompt;     // for penalties
  absl::Span<const uint32_t> generated;  // its size is the position in the random stream
  absl::Span<const uint32_t> banned;     // ids that must not be sampled (EOS under min_new_tokens)
  // Scoring: the token whose log-probability is wanted.
  uint32_t target = 0;
  bool logprob = false;
  uint32_t top_logprobs = 0;
};

struct RowResult {
  TokenOutput token;
  bool finite = true;  // false: the row had NaN or Inf, `token` is meaningless
};

// Limits and sizes of the loaded model, fixed after construction.
struct RunnerInfo {
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;
  uint32_t block_size = 0;
  uint32_t blocks = 0;  // KV blocks that exist
};

// Used by the engine thread only.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerInfo& info() const = 0;
  // tasks.size() == batch.logits_rows.size(), same order; the results too. An error ends every
  // sequence of the batch.
  virtual absl::StatusOr<std::vector<RowResult>> Run(const scheduler::Batch& batch,
                                                     absl::Span<const RowTask> tasks) = 0;
};

}  // namespace normserve::engine
