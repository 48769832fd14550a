// SPDX-License-Identifier: Apache-2.0
// A step's arrays as one block of bytes, so that one copy brings them all to the device. Where an array lies
// depends on the step's shape alone, so that recorded work finds it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "engine/sample_tasks.h"
#include "kernels/accelerator.h"
#include "kernels/attention_tiles.h"
#include "model/causal_lm.h"
#include "scheduler/batch.h"

namespace normserve::engine {

// Sizes of a step as it runs: those of its batch, or larger ones, whose rows beyond the batch touch no block
// but the padding block.
struct StepShape {
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t table_blocks = 0;  // per sequence
  int64_t rows = 0;          // of logits
};

// What attention by tiles has to know of the model and its cache.
struct TileCut {
  int64_t block_size = 0;
  int64_t group = 0;  // heads per kv head
};

// Used by the engine thread.
class StepArrays {
 public:
  // `accelerator` outlives this. `padding_block` is a block that no sequence owns. With a `cut`, a step's arrays
  // have the tiles of its attention.
  StepArrays(kernels::Accelerator* accelerator, int32_t padding_block, std::optional<TileCut> cut)
      : accelerator_(accelerator), padding_block_(padding_block), cut_(cut) {}

  // Makes the block as large as a step needs it. True: it has moved, so that nothing recorded before may be
  // replayed.
  bool MakeRoom(const SampleTasks& tasks, const StepShape& shape);
  // Copies a step's arrays to the device. After MakeRoom.
  void Upload(const scheduler::Batch& batch, const SampleTasks& tasks, const StepShape& shape);

  // Views of what Upload brought last.
  const model::StepInput& input() const { return input_; }
  const at::Tensor& tasks() const { return tasks_; }              // [rows, bytes]
  const at::Tensor& adjustments() const { return adjustments_; }  // [>= 1, bytes]

 private:
  struct Layout;
  void Fill(const scheduler::Batch& batch, const SampleTasks& tasks, const StepShape& shape,
            const Layout& layout);
  void Pad(const scheduler::Batch& batch, const StepShape& shape, const Layout& layout);
  kernels::AttentionTileShape TileShapeOf(const StepShape& shape) const;
  int64_t TileInts(const StepShape& shape) const;  // 0 without a cut
  void View(const StepShape& shape, const Layout& layout);
  template <class T>
  T* Host(int64_t offset) {
    return reinterpret_cast<T*>(host_.data_ptr<uint8_t>() + offset);
  }

  kernels::Accelerator* const accelerator_;
  const int32_t padding_block_;
  const std::optional<TileCut> cut_;
  at::Tensor host_;    // [bytes]
  at::Tensor device_;  // [bytes]
  model::StepInput input_;
  at::Tensor tasks_;
  at::Tensor adjustments_;
};

}  // namespace normserve::engine
