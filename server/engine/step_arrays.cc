// SPDX-License-Identifier: Apache-2.0
#include "engine/step_arrays.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/sample_rows.h"

namespace normserve::engine {
namespace {

using kernels::SampleTask;
using kernels::TokenAdjustment;

constexpr int64_t kAlign = 16;
constexpr int64_t kLeastBytes = int64_t{1} << 20;
constexpr int64_t kInt = sizeof(int32_t);

// A stretch of `bytes` at the end of what is laid out so far; moves the end.
int64_t Place(int64_t& end, int64_t bytes) {
  const int64_t begin = end;
  end = (end + bytes + kAlign - 1) / kAlign * kAlign;
  return begin;
}

void Copy(const std::vector<int32_t>& from, int32_t* to) { std::copy(from.begin(), from.end(), to); }

}  // namespace

// Offsets in bytes. What varies under one shape, the number of adjustments, comes last.
struct StepArrays::Layout {
  Layout(const StepShape& s, int64_t tile_ints, size_t adjustment_count)
      : token_ids(Place(end, s.tokens * kInt)),
        positions(Place(end, s.tokens * kInt)),
        slots(Place(end, s.tokens * kInt)),
        token_sequence(Place(end, s.tokens * kInt)),
        logits_rows(Place(end, s.rows * kInt)),
        block_tables(Place(end, s.sequences * s.table_blocks * kInt)),
        tiles(Place(end, tile_ints * kInt)),
        tasks(Place(end, s.rows * static_cast<int64_t>(sizeof(SampleTask)))),
        adjustments(Place(end, static_cast<int64_t>((adjustment_count + 1) * sizeof(TokenAdjustment)))) {}

  int64_t end = 0;
  int64_t token_ids, positions, slots, token_sequence, logits_rows, block_tables, tiles, tasks, adjustments;
};

kernels::AttentionTileShape StepArrays::TileShapeOf(const StepShape& shape) const {
  return {shape.tokens, shape.sequences, shape.table_blocks, cut_->block_size, cut_->group};
}

int64_t StepArrays::TileInts(const StepShape& shape) const {
  return cut_ ? kernels::AttentionTilesLayout(TileShapeOf(shape)).ints : 0;
}

bool StepArrays::MakeRoom(const SampleTasks& tasks, const StepShape& shape) {
  const Layout layout(shape, TileInts(shape), tasks.adjustments().size());
  if (host_.defined() && host_.numel() >= layout.end) return false;
  const int64_t bytes = std::max(kLeastBytes, 2 * layout.end);
  const auto on_device = at::TensorOptions().dtype(at::kByte).device(accelerator_->device());
  at::Tensor host = accelerator_->HostBytes(bytes);
  device_ = at::empty({bytes}, on_device);  // may throw: both or neither
  host_ = std::move(host);
  return true;
}

void StepArrays::Upload(const scheduler::Batch& batch, const SampleTasks& tasks,
                        const StepShape& shape) {
  const Layout layout(shape, TileInts(shape), tasks.adjustments().size());
  Fill(batch, tasks, shape, layout);
  Pad(batch, shape, layout);
  device_.narrow(0, 0, layout.end).copy_(host_.narrow(0, 0, layout.end), /*non_blocking=*/true);
  View(shape, layout);
  // Rows beyond the batch may then be any: those of the tokens beyond it.
  input_.every_token = batch.logits_rows.size() == batch.token_ids.size() && shape.rows == shape.tokens;
}

void StepArrays::Fill(const scheduler::Batch& batch, const SampleTasks& tasks, const StepShape& shape,
                      const Layout& layout) {
  Copy(batch.token_ids, Host<int32_t>(layout.token_ids));
  Copy(batch.positions, Host<int32_t>(layout.positions));
  Copy(batch.slots, Host<int32_t>(layout.slots));
  Copy(batch.token_sequence, Host<int32_t>(layout.token_sequence));
  Copy(batch.logits_rows, Host<int32_t>(layout.logits_rows));
  int32_t* table = Host<int32_t>(layout.block_tables);
  for (int32_t sequence = 0; sequence < batch.sequences; ++sequence, table += shape.table_blocks) {
    const int32_t* from = batch.block_tables.data() + int64_t{sequence} * batch.max_blocks;
    std::fill(std::copy(from, from + batch.max_blocks, table), table + shape.table_blocks, padding_block_);
  }
  if (cut_) {
    kernels::FillAttentionTiles(TileShapeOf(shape), static_cast<int64_t>(batch.token_ids.size()),
                                batch.token_sequence.data(), batch.positions.data(),
                                Host<int32_t>(layout.tiles));
  }
  std::copy(tasks.tasks().begin(), tasks.tasks().end(), Host<SampleTask>(layout.tasks));
  std::copy(tasks.adjustments().begin(), tasks.adjustments().end(),
            Host<TokenAdjustment>(layout.adjustments));
}

// Tokens beyond the batch belong to the last sequence, which is none of the batch's: they read the padding block,
// or by tiles nothing, and write nothing. Rows beyond the batch are theirs, or its last token's, and are sampled greedily.
void StepArrays::Pad(const scheduler::Batch& batch, const StepShape& shape, const Layout& layout) {
  const int64_t more_sequences = shape.sequences - batch.sequences;
  std::fill_n(Host<int32_t>(layout.block_tables) + batch.sequences * shape.table_blocks,
              more_sequences * shape.table_blocks, padding_block_);
  const int64_t tokens = static_cast<int64_t>(batch.token_ids.size());
  for (int64_t t = tokens; t < shape.tokens; ++t) {
    Host<int32_t>(layout.token_ids)[t] = 0;
    Host<int32_t>(layout.positions)[t] = 0;
    Host<int32_t>(layout.slots)[t] = -1;
    Host<int32_t>(layout.token_sequence)[t] = static_cast<int32_t>(shape.sequences - 1);
  }
  const int64_t rows = static_cast<int64_t>(batch.logits_rows.size());
  for (int64_t row = rows; row < shape.rows; ++row) {
    Host<int32_t>(layout.logits_rows)[row] = static_cast<int32_t>(shape.tokens - 1);
    Host<SampleTask>(layout.tasks)[row] = SampleTask();
  }
}

void StepArrays::View(const StepShape& shape, const Layout& layout) {
  const auto ints = [&](int64_t offset, int64_t count) {
    return device_.narrow(0, offset, count * kInt).view(at::kInt);
  };
  input_.token_ids = ints(layout.token_ids, shape.tokens);
  input_.positions = ints(layout.positions, shape.tokens);
  input_.slots = ints(layout.slots, shape.tokens);
  input_.token_sequence = ints(layout.token_sequence, shape.tokens);
  input_.logits_rows = ints(layout.logits_rows, shape.rows);
  input_.block_tables = ints(layout.block_tables, shape.sequences * shape.table_blocks)
                            .view({shape.sequences, shape.table_blocks});
  input_.tiles = cut_ ? ints(layout.tiles, TileInts(shape)) : at::Tensor();
  const auto bytes = [&](int64_t begin, int64_t end, size_t item) {
    const int64_t width = static_cast<int64_t>(item), count = (end - begin) / width;
    return device_.narrow(0, begin, count * width).view({count, width});
  };
  tasks_ = bytes(layout.tasks, layout.tasks + shape.rows * static_cast<int64_t>(sizeof(SampleTask)),
                 sizeof(SampleTask));
  adjustments_ = bytes(layout.adjustments, layout.end, sizeof(TokenAdjustment));
}

}  // namespace normserve::engine
