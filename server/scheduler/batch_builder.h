// SPDX-License-Identifier: Apache-2.0
// Writes the planned tokens of sequences into a Batch. Decides nothing.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/batch.h"
#include "scheduler/sequence.h"

namespace normserve::scheduler {

// Replaces `batch` by the next `planned` tokens of each sequence, in order. Keeps its memory.
void BuildBatch(absl::Span<Sequence* const> sequences, uint32_t block_size, Batch& batch);

}  // namespace normserve::scheduler
