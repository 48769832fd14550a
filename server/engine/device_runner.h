// SPDX-License-Identifier: Apache-2.0
// Runs batches on a CausalLm whose weights and cache are on a device beside the CPU: one copy there with a step's
// arrays, one back with its tokens. Steps in which every sequence decodes one token are rounded up to a few
// shapes, recorded once per shape and replayed. Catches LibTorch's exceptions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "engine/sample_tasks.h"
#include "engine/sampler.h"
#include "engine/step_arrays.h"
#include "kernels/accelerator.h"
#include "model/causal_lm.h"

namespace normserve::engine {

struct DeviceRunnerOptions {
  uint32_t block_size = 32;       // tokens per KV block, a multiple of 16
  uint32_t blocks = 0;            // KV blocks to allocate; one more is allocated for padding
  uint32_t max_step_tokens = 512; // as the engine's: what room is made for at once
  // A step's rows are padded to a multiple of this: kBatchInvariantRows where the model is loaded so.
  uint32_t row_multiple = 1;
  bool tile_attention = false;  // the device has it: Accelerator::TileAttentionFault
  bool record = true;             // false: every step is put on the device kernel by kernel

  // Rows of the largest step.
  int64_t StepRows() const {
    return (int64_t{max_step_tokens} + row_multiple - 1) / row_multiple * row_multiple;
  }
};

// Used by the engine thread only (but for construction and warm-up).
class DeviceRunner final : public Runner {
 public:
  // `accelerator` outlives this, and holds the model. Throws c10::Error where the cache finds no memory.
  DeviceRunner(std::unique_ptr<model::CausalLm> model, kernels::Accelerator* accelerator,
               const DeviceRunnerOptions& options);

  const RunnerInfo& info() const override { return info_; }
  absl::Status Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) override;
  absl::StatusOr<std::vector<RowResult>> Finish() override;
  Recorded recorded() const override { return recorded_; }

  // Whether attention by tiles can do steps of such a size: an error that names the flag, and what is allowed.
  static absl::Status CheckTileAttention(const model::ModelDescription& description, const DeviceRunnerOptions& options);
  // Bytes on the device beside the model and its cache, before the first step: for sizing the cache.
  static uint64_t BufferBytes(const model::ModelDescription& description,
                              const DeviceRunnerOptions& options);

 private:
  // One shape of decode steps. Runs once as it is, so that every kernel is loaded, and is then recorded.
  struct Recording {
    bool has_run = false;
    bool failed = false;  // to record: such steps go kernel by kernel
    std::unique_ptr<kernels::RecordedWork> work;
  };

  StepShape ShapeOf(const scheduler::Batch& batch) const;
  void RunStep(const scheduler::Batch& batch, absl::Span<const RowTask> tasks);
  void RunRecorded(const StepShape& shape);
  void Record(const StepShape& shape, Recording& recording);
  void RunKernels(int64_t rows);
  void DecideOnHost(const at::Tensor& logits);

  std::unique_ptr<model::CausalLm> model_;
  kernels::Accelerator* const accelerator_;
  const bool record_;
  const int64_t row_multiple_;
  RunnerInfo info_;
  model::KvCache cache_;
  SampleTasks sample_tasks_;
  StepArrays arrays_;
  at::Tensor tile_work_;     // [bytes], of attention by tiles
  at::Tensor logits_;        // [rows of a slice, vocab]
  at::Tensor work_;          // the same, for sampling
  at::Tensor results_;       // [rows, sizeof(SampledRow)] bytes
  at::Tensor results_copy_;  // of the step's rows, on the host
  std::map<std::pair<int64_t, int64_t>, Recording> recordings_;  // by rows and table blocks
  Recorded recorded_ = Recorded::kNone;
  Recording* first_run_ = nullptr;  // the shape that this step runs for the first time
  std::thread::id thread_;          // that recordings were made on
  std::unique_lock<std::mutex> turn_;  // from Start to Finish
  absl::Span<const RowTask> tasks_;  // of the step that has begun
  // Of a step with a row that asks for more than the sampling kernel gives: every row is decided on the host.
  bool on_host_ = false;
  Sampler host_sampler_;
  std::vector<RowResult> decided_;
};

}  // namespace normserve::engine
