// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "engine/end_throws.h"

namespace normserve::engine {
namespace {

// Scoring wants logits of every position of a chunk; this bounds their memory, whatever the chunk.
constexpr int64_t kMaxLogitsRows = 64;

// A view, valid while `values` is.
at::Tensor Int32View(const std::vector<int32_t>& values, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<int32_t*>(values.data()), sizes, at::kInt);
}

at::Tensor Int32View(const std::vector<int32_t>& values) {
  return Int32View(values, {static_cast<int64_t>(values.size())});
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<model::CausalLm> model, const ModelRunnerOptions& options)
    : model_(std::move(model)), pool_(std::max(1, options.threads), options.cpus), samplers_(pool_.threads()) {
  const model::ModelDescription& description = model_->description();
  info_.vocab_size = static_cast<uint32_t>(description.vocab_size);
  info_.max_context_tokens = static_cast<uint32_t>(description.max_context_tokens);
  info_.block_size = options.block_size;
  info_.blocks = options.blocks;
  cache_ = model_->MakeCache(options.blocks, options.block_size);
  logits_ = at::empty({kMaxLogitsRows, description.vocab_size}, at::kFloat);
}

absl::Status ModelRunner::Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) {
  batch_ = &batch;
  tasks_ = tasks;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowResult>> ModelRunner::Finish() {
  return EndThrows([&] { return Forward(*batch_, tasks_); });
}

// Our kernels bring their own threads; LibTorch's would fight them for the cores. Its setting
// belongs to the calling thread.
void ModelRunner::PrepareThread() {
  if (prepared_ == std::this_thread::get_id()) return;
  at::set_num_threads(1);
  prepared_ = std::this_thread::get_id();
  // The thread that made the runner warms it up, and then makes others': it stays free.
  if (prepared_ != maker_) pool_.PinCaller();
}

std::vector<RowResult> ModelRunner::Forward(const scheduler::Batch& batch,
                                            absl::Span<const RowTask> tasks) {
  PrepareThread();
  const c10::InferenceMode inference;
  const kernels::ScopedPool scope(&pool_);
  model::StepInput input;
  input.token_ids = Int32View(batch.token_ids);
  input.positions = Int32View(batch.positions);
  input.slots = Int32View(batch.slots);
  input.token_sequence = Int32View(batch.token_sequence);
  input.block_tables = Int32View(batch.block_tables, {batch.sequences, batch.max_blocks});
  input.logits_rows = Int32View(batch.logits_rows);
  input.every_token = batch.logits_rows.size() == batch.token_ids.size();
  const at::Tensor hidden = model_->Forward(input, cache_);

  std::vector<RowResult> results(tasks.size());
  const int64_t rows = static_cast<int64_t>(tasks.size());
  for (int64_t begin = 0; begin < rows; begin += kMaxLogitsRows) {
    const int64_t count = std::min(kMaxLogitsRows, rows - begin);
    at::Tensor logits = logits_.narrow(0, 0, count);
    model_->Logits(hidden.narrow(0, begin, count), logits);
    Decide(logits.const_data_ptr<float>(), tasks.subspan(begin, count),
           absl::MakeSpan(results).subspan(begin, count));
  }
  return results;
}

// Which thread takes which row changes nothing: a decision depends on its row and task alone.
void ModelRunner::Decide(const float* logits, absl::Span<const RowTask> tasks,
                         absl::Span<RowResult> results) {
  const size_t vocab = info_.vocab_size;
  const size_t lanes = std::min(samplers_.size(), tasks.size());
  pool_.ParallelFor(static_cast<int64_t>(lanes), 1, [&](int64_t begin, int64_t end) {
    for (size_t lane = begin; lane < static_cast<size_t>(end); ++lane) {
      for (size_t row = lane; row < tasks.size(); row += lanes) {
        results[row] = samplers_[lane].Decide({logits + row * vocab, vocab}, tasks[row]);
      }
    }
  });
}

}  // namespace normserve::engine
