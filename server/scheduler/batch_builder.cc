// SPDX-License-Identifier: Apache-2.0
#include "scheduler/batch_builder.h"

#include <algorithm>

namespace normserve::scheduler {
namespace {

void Clear(Batch& batch) {
  batch.token_ids.clear();
  batch.positions.clear();
  batch.slots.clear();
  batch.token_sequence.clear();
  batch.block_tables.clear();
  batch.logits_rows.clear();
  batch.logits_sequence.clear();
  batch.sequences = 0;
  batch.max_blocks = 0;
}

}  // namespace

void BuildBatch(absl::Span<Sequence* const> sequences, uint32_t block_size, Batch& batch) {
  Clear(batch);
  batch.sequences = static_cast<int32_t>(sequences.size());
  for (const Sequence* s : sequences) {
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int32_t>(s->blocks.size()));
  }
  batch.block_tables.assign(sequences.size() * batch.max_blocks, 0);
  for (size_t row = 0; row < sequences.size(); ++row) {
    const Sequence& s = *sequences[row];
    std::copy(s.blocks.begin(), s.blocks.end(),
              batch.block_tables.begin() + row * batch.max_blocks);
    for (uint32_t position = s.computed; position < s.computed + s.planned; ++position) {
      if (position >= s.first_row()) {
        batch.logits_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
        batch.logits_sequence.push_back(s.id);
      }
      const uint32_t block = s.blocks[position / block_size];
      batch.token_ids.push_back(static_cast<int32_t>(s.tokens[position]));
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slots.push_back(static_cast<int32_t>(block * block_size + position % block_size));
      batch.token_sequence.push_back(static_cast<int32_t>(row));
    }
  }
}

}  // namespace normserve::scheduler
