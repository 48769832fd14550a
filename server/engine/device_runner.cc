// SPDX-License-Identifier: Apache-2.0
#include "engine/device_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/end_throws.h"
#include "kernels/attention_tiles.h"
#include "kernels/sample_rows.h"

namespace normserve::engine {
namespace {

using kernels::SampledRow;

// Scoring wants logits of every position of a chunk; this bounds their memory, whatever the chunk.
constexpr int64_t kMaxLogitsRows = 256;
constexpr int64_t kLeastTableBlocks = 16;
constexpr int64_t kRowBytes = sizeof(SampledRow);
constexpr size_t kMostRecordings = 128;
// What attention and the matrix library work in, with and without recordings, and the recordings themselves.
constexpr uint64_t kWorkBytes = uint64_t{512} << 20;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The next of 1, 2, 4, 8, 16, 24, ... 64, 80, ... 128, 160, ...: a step computes at most a quarter more than it
// was asked for.
int64_t RoundUpRows(int64_t rows) {
  if (rows <= 8) return rows <= 2 ? rows : rows <= 4 ? 4 : 8;
  const int64_t unit = rows <= 64 ? 8 : rows <= 128 ? 16 : 32;
  return RoundUp(rows, unit);
}

int64_t RoundUpBlocks(int64_t blocks) {
  int64_t rounded = kLeastTableBlocks;
  while (rounded < blocks) rounded *= 2;
  return rounded;
}

int64_t TokensOf(const scheduler::Batch& batch) { return static_cast<int64_t>(batch.token_ids.size()); }

bool EverySequenceDecodes(const scheduler::Batch& batch) {
  const size_t sequences = static_cast<size_t>(batch.sequences);
  return batch.token_ids.size() == sequences && batch.logits_rows.size() == sequences;
}

std::optional<TileCut> CutOf(const model::ModelDescription& description, const DeviceRunnerOptions& options) {
  if (!options.tile_attention) return std::nullopt;
  return TileCut{options.block_size, description.heads / description.kv_heads};
}

// Of `tokens` tokens whose contexts may be as long as can be, in whole blocks.
kernels::TileParts PartsOf(const model::ModelDescription& d, const DeviceRunnerOptions& options, int64_t tokens) {
  const int64_t longest = RoundUp(d.max_context_tokens, options.block_size);
  const int64_t splits = RoundUp(longest, kernels::kTileKeys) / kernels::kTileKeys;
  return {tokens, splits, d.heads, d.head_dim, d.dtype == "bfloat16" ? 2 : 4};
}

}  // namespace

DeviceRunner::DeviceRunner(std::unique_ptr<model::CausalLm> model, kernels::Accelerator* accelerator,
                           const DeviceRunnerOptions& options)
    : model_(std::move(model)),
      accelerator_(accelerator),
      record_(options.record),
      row_multiple_(options.row_multiple),
      sample_tasks_(static_cast<uint32_t>(model_->description().vocab_size)),
      arrays_(accelerator, static_cast<int32_t>(options.blocks), CutOf(model_->description(), options)) {
  const model::ModelDescription& description = model_->description();
  info_.vocab_size = static_cast<uint32_t>(description.vocab_size);
  info_.max_context_tokens = static_cast<uint32_t>(description.max_context_tokens);
  info_.block_size = options.block_size;
  info_.blocks = options.blocks;
  accelerator_->UseOnThisThread();
  const auto on_device = at::TensorOptions().device(accelerator_->device());
  cache_ = model_->MakeCache(int64_t{options.blocks} + 1, options.block_size, options.tile_attention);
  if (options.tile_attention) {
    tile_work_ = at::empty({PartsOf(description, options, options.StepRows()).bytes}, on_device.dtype(at::kByte));
  }
  logits_ = at::empty({kMaxLogitsRows, description.vocab_size}, on_device.dtype(at::kFloat));
  work_ = at::empty_like(logits_);
  const int64_t rows = options.StepRows();
  results_ = at::empty({rows, kRowBytes}, on_device.dtype(at::kByte));
  results_copy_ = accelerator_->HostBytes(rows * kRowBytes).view({rows, kRowBytes});
  model_->Reserve(rows, rows);
  accelerator_->Wait();
}

StepShape DeviceRunner::ShapeOf(const scheduler::Batch& batch) const {
  StepShape shape;
  shape.tokens = TokensOf(batch);
  shape.rows = static_cast<int64_t>(batch.logits_rows.size());
  shape.sequences = batch.sequences;
  shape.table_blocks = batch.max_blocks;
  if (record_ && EverySequenceDecodes(batch)) {
    // Recordings are told apart by rows and table blocks: nothing else may vary.
    const int64_t rounded = RoundUp(RoundUpRows(shape.rows), row_multiple_);
    shape.tokens = shape.rows = shape.sequences = std::min(rounded, results_.size(0));
    // No context is longer than the model's.
    const int64_t most = RoundUp(info_.max_context_tokens, info_.block_size) / info_.block_size;
    shape.table_blocks = std::max<int64_t>(batch.max_blocks, std::min(RoundUpBlocks(batch.max_blocks), most));
    return shape;
  }
  shape.tokens = RoundUp(shape.tokens, row_multiple_);
  shape.rows = RoundUp(shape.rows, row_multiple_);
  // One sequence more, if need be, that padded tokens belong to.
  shape.sequences = std::max<int64_t>(shape.sequences, batch.sequences + (shape.tokens > TokensOf(batch)));
  return shape;
}

absl::Status DeviceRunner::Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) {
  tasks_ = tasks;
  decided_.clear();
  recorded_ = Recorded::kNone;
  first_run_ = nullptr;
  turn_ = std::unique_lock<std::mutex>(accelerator_->turn());
  const absl::Status status = EndThrows([&] {
                                RunStep(batch, tasks);
                                return true;
                              }).status();
  if (status.ok()) return status;
  // What was put on the device before the failure still reads this step's arrays.
  EndThrows([&] {
    accelerator_->Wait();
    return true;
  }).IgnoreError();
  turn_.unlock();
  return status;
}

void DeviceRunner::RunStep(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) {
  accelerator_->UseOnThisThread();
  const c10::InferenceMode inference;
  const StepShape shape = ShapeOf(batch);
  TORCH_CHECK(TokensOf(batch) <= results_.size(0), "a step of ", TokensOf(batch), " tokens; allowed: at most ",
              results_.size(0));
  on_host_ = !sample_tasks_.Describe(tasks);
  if (arrays_.MakeRoom(sample_tasks_, shape)) recordings_.clear();
  arrays_.Upload(batch, sample_tasks_, shape);
  if (on_host_ || !record_ || !EverySequenceDecodes(batch)) {
    RunKernels(shape.rows);
  } else {
    RunRecorded(shape);
  }
  if (on_host_) return;
  const int64_t rows = static_cast<int64_t>(tasks.size());
  results_copy_.narrow(0, 0, rows).copy_(results_.narrow(0, 0, rows), /*non_blocking=*/true);
}

void DeviceRunner::RunRecorded(const StepShape& shape) {
  // LibTorch makes what it needs of cuBLAS once per thread, which a recording must not see.
  if (thread_ != std::this_thread::get_id()) recordings_.clear();
  thread_ = std::this_thread::get_id();
  Recording& recording = recordings_[{shape.rows, shape.table_blocks}];
  if (recording.work != nullptr) {
    recorded_ = Recorded::kReplayed;
  } else if (recording.has_run && !recording.failed && recordings_.size() <= kMostRecordings) {
    Record(shape, recording);
  }
  if (recording.work != nullptr) return recording.work->Replay();
  RunKernels(shape.rows);
  first_run_ = &recording;
}

// A step whose recording fails runs kernel by kernel.
void DeviceRunner::Record(const StepShape& shape, Recording& recording) {
  try {
    recording.work = accelerator_->Record([&] { RunKernels(shape.rows); });
    recorded_ = Recorded::kNow;
  } catch (const c10::Error&) {
    recording.failed = true;
  }
}

void DeviceRunner::RunKernels(int64_t rows) {
  model::StepInput input = arrays_.input();
  input.tile_work = tile_work_;
  const at::Tensor hidden = model_->Forward(input, cache_);
  for (int64_t begin = 0; begin < rows; begin += kMaxLogitsRows) {
    const int64_t count = std::min(kMaxLogitsRows, rows - begin);
    at::Tensor logits = logits_.narrow(0, 0, count);
    model_->Logits(hidden.narrow(0, begin, count), logits);
    if (on_host_) {
      DecideOnHost(logits);
      continue;
    }
    accelerator_->Sample({logits, arrays_.tasks().narrow(0, begin, count), arrays_.adjustments(),
                          work_.narrow(0, 0, count), results_.narrow(0, begin, count)});
  }
}

// The next rows of the step; those beyond its tasks are padding.
void DeviceRunner::DecideOnHost(const at::Tensor& logits) {
  const at::Tensor on_host = logits.to(at::kCPU);
  const float* row = on_host.const_data_ptr<float>();
  for (int64_t i = 0; i < logits.size(0) && decided_.size() < tasks_.size(); ++i, row += info_.vocab_size) {
    decided_.push_back(host_sampler_.Decide({row, info_.vocab_size}, tasks_[decided_.size()]));
  }
}

absl::StatusOr<std::vector<RowResult>> DeviceRunner::Finish() {
  auto results = EndThrows([&] {
    accelerator_->Wait();
    if (first_run_ != nullptr) first_run_->has_run = true;
    if (on_host_) return std::move(decided_);
    std::vector<RowResult> results;
    results.reserve(tasks_.size());
    const auto* rows = reinterpret_cast<const SampledRow*>(results_copy_.const_data_ptr<uint8_t>());
    for (size_t i = 0; i < tasks_.size(); ++i) results.push_back(FromSampled(rows[i], tasks_[i]));
    return results;
  });
  turn_.unlock();
  return results;
}

absl::Status DeviceRunner::CheckTileAttention(const model::ModelDescription& description,
                                              const DeviceRunnerOptions& options) {
  if (!options.tile_attention) return absl::OkStatus();
  if (PartsOf(description, options, options.StepRows()).elements <= kernels::kMostPartElements) return absl::OkStatus();
  const int64_t most = kernels::kMostPartElements / PartsOf(description, options, 1).elements;
  return absl::InvalidArgumentError(
      absl::StrCat("--max-step-tokens: ", options.max_step_tokens, "; allowed with --attention flashinfer and a context of ",
                   description.max_context_tokens, ": at most ", most / options.row_multiple * options.row_multiple));
}

uint64_t DeviceRunner::BufferBytes(const model::ModelDescription& description,
                                   const DeviceRunnerOptions& options) {
  const uint64_t logits = 2 * kMaxLogitsRows * static_cast<uint64_t>(description.vocab_size) * sizeof(float);
  const uint64_t block = static_cast<uint64_t>(description.kv_bytes_per_token) * options.block_size;
  // A quantised weight is widened for many rows, with recordings a second time; the largest is the head's.
  const bool widens = description.quantization != "none" || description.head_quantization != "none";
  const uint64_t widened = widens ? 2 * static_cast<uint64_t>(description.vocab_size * description.hidden_size) *
                                        sizeof(float)
                                  : 0;
  const int64_t parts = options.tile_attention ? PartsOf(description, options, options.StepRows()).bytes : 0;
  return kWorkBytes + static_cast<uint64_t>(parts) + widened + logits + block +
         static_cast<uint64_t>(options.StepRows()) * kRowBytes;
}

}  // namespace normserve::engine
