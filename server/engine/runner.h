// SPDX-License-Identifier: Apache-2.0
// What the engine needs of a model: run one batch and decide its rows. Implemented by ModelRunner on the CPU, by
// DeviceRunner on a device beside it, and by the fake runner of the tests. No torch here.
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

// How a step was put on a device that can replay recorded work (CUDA graphs).
enum class Recorded {
  kNone,      // not recorded: work that is not of a recorded shape, or a device without recordings
  kNow,       // recorded in this step, for the next of its shape
  kReplayed,
};
inline constexpr int kRecordedCount = 3;

// Used by the engine thread only (but for construction and warm-up).
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerInfo& info() const = 0;

  // Begins a step. A device may go on with it after the return; `batch`, `tasks` and what they point to stay
  // as they are until Finish, which ends it. tasks.size() == batch.logits_rows.size(), same order. After an
  // error there is nothing to finish; an error of either ends every sequence of the batch.
  virtual absl::Status Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) = 0;
  // Waits for the step; results in the order of its tasks.
  virtual absl::StatusOr<std::vector<RowResult>> Finish() = 0;
  // Of the last step.
  virtual Recorded recorded() const { return Recorded::kNone; }

  absl::StatusOr<std::vector<RowResult>> Run(const scheduler::Batch& batch,
                                             absl::Span<const RowTask> tasks) {
    if (absl::Status status = Start(batch, tasks); !status.ok()) return status;
    return Finish();
  }
};

// A prefill and some decode steps on the first block, which nobody owns yet, so that the first request pays
// nothing extra and a broken kernel is found before SERVING. What it leaves there does not matter.
absl::Status WarmUp(Runner& runner);

}  // namespace normserve::engine
