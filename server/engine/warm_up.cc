// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/status_macros.h"
#include "engine/runner.h"

namespace normserve::engine {
namespace {

// More than kernels for few rows take.
constexpr int32_t kTokens = 24;
// A device runs a shape, records it, and replays it.
constexpr int kDecodeSteps = 3;

absl::Status Step(Runner& runner, int32_t first_position, int32_t tokens) {
  const int32_t vocab = static_cast<int32_t>(runner.info().vocab_size);
  scheduler::Batch batch;
  for (int32_t position = first_position; position < first_position + tokens; ++position) {
    batch.token_ids.push_back(position % vocab);
    batch.positions.push_back(position);
    batch.slots.push_back(position);
    batch.token_sequence.push_back(0);
  }
  batch.block_tables = {0};
  batch.sequences = 1;
  batch.max_blocks = 1;
  batch.logits_rows = {tokens - 1};
  batch.logits_sequence = {0};
  const SamplingParams greedy;
  RowTask task;
  task.sampling = &greedy;
  task.logprob = true;
  NS_ASSIGN_OR_RETURN(const std::vector<RowResult> results, runner.Run(batch, {&task, 1}));
  // A NaN row is not an error of the machinery: the checkpoint may have one for these ids.
  return results.size() == 1 ? absl::OkStatus() : absl::InternalError("warm-up returned no result");
}

}  // namespace

absl::Status WarmUp(Runner& runner) {
  const RunnerInfo& info = runner.info();
  if (info.blocks == 0) return absl::InvalidArgumentError("KV blocks: 0, at least 1 needed");
  const uint32_t limit = std::min(info.max_context_tokens, info.block_size);
  const int32_t tokens = std::min<int32_t>(kTokens, static_cast<int32_t>(limit) - 1);
  if (tokens > 0) NS_RETURN_IF_ERROR(Step(runner, 0, tokens));
  for (int i = 0; i < kDecodeSteps; ++i) NS_RETURN_IF_ERROR(Step(runner, std::max(tokens, 0), 1));
  return absl::OkStatus();
}

}  // namespace normserve::engine
