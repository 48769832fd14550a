// SPDX-License-Identifier: Apache-2.0
// Runs batches on a CausalLm: arrays to tensors, forward, logits in slices, sampling. The one place
// where a LibTorch exception is caught.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "engine/runner.h"
#include "engine/sampler.h"
#include "kernels/thread_pool.h"
#include "model/causal_lm.h"

namespace normserve::engine {

struct ModelRunnerOptions {
  uint32_t block_size = 32;  // tokens per KV block, a multiple of 16
  uint32_t blocks = 0;       // KV blocks to allocate
  int threads = 1;           // compute threads, the engine thread included
};

// Used by the engine thread only (but for construction and Warmup).
class ModelRunner final : public Runner {
 public:
  ModelRunner(std::unique_ptr<model::CausalLm> model, const ModelRunnerOptions& options);

  // One prefill and one decode step on scratch blocks, so that the first request pays nothing extra
  // and a broken kernel is found before SERVING.
  absl::Status Warmup();

  const RunnerInfo& info() const override { return info_; }
  absl::StatusOr<std::vector<RowResult>> Run(const scheduler::Batch& batch,
                                             absl::Span<const RowTask> tasks) override;

 private:
  void PrepareThread();
  std::vector<RowResult> Forward(const scheduler::Batch& batch, absl::Span<const RowTask> tasks);
  void Decide(const float* logits, absl::Span<const RowTask> tasks, absl::Span<RowResult> results);
  absl::Status WarmupStep(int32_t first_position, int32_t tokens);

  std::unique_ptr<model::CausalLm> model_;
  kernels::ThreadPool pool_;
  RunnerInfo info_;
  model::KvCache cache_;
  at::Tensor logits_;              // [rows of a slice, vocab]
  std::vector<Sampler> samplers_;  // one per thread
  std::thread::id prepared_;       // the thread whose LibTorch settings are made
};

}  // namespace normserve::engine
