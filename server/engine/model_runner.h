// SPDX-License-Identifier: Apache-2.0
// Runs batches on a CausalLm on the CPU: arrays to tensors, forward, logits in slices, sampling on the threads
// that also compute. Catches LibTorch's exceptions, as DeviceRunner does for its device.
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
  std::vector<int> cpus;     // that they stay on, one each; empty: wherever the system puts them
};

// Used by the engine thread only (but for construction and warm-up).
class ModelRunner final : public Runner {
 public:
  ModelRunner(std::unique_ptr<model::CausalLm> model, const ModelRunnerOptions& options);

  const RunnerInfo& info() const override { return info_; }
  // The engine thread is one of those that compute: all of a step is done in Finish.
  absl::Status Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) override;
  absl::StatusOr<std::vector<RowResult>> Finish() override;

 private:
  void PrepareThread();
  std::vector<RowResult> Forward(const scheduler::Batch& batch, absl::Span<const RowTask> tasks);
  void Decide(const float* logits, absl::Span<const RowTask> tasks, absl::Span<RowResult> results);

  std::unique_ptr<model::CausalLm> model_;
  kernels::ThreadPool pool_;
  RunnerInfo info_;
  model::KvCache cache_;
  at::Tensor logits_;              // [rows of a slice, vocab]
  std::vector<Sampler> samplers_;  // one per thread
  const std::thread::id maker_ = std::this_thread::get_id();
  std::thread::id prepared_;       // the thread whose LibTorch settings are made
  const scheduler::Batch* batch_ = nullptr;  // of the step that has begun
  absl::Span<const RowTask> tasks_;
};

}  // namespace normserve::engine
