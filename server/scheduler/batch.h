// SPDX-License-Identifier: Apache-2.0
// One engine step as plain arrays: what the scheduler decided and the runner runs.
#pragma once

#include <cstdint>
#include <vector>

namespace normserve::scheduler {

using SequenceId = uint64_t;

// Rows of several sequences one after the other; each sequence's rows are consecutive positions.
struct Batch {
  std::vector<int32_t> token_ids;       // [tokens]
  std::vector<int32_t> positions;       // [tokens], position within the sequence
  std::vector<int32_t> slots;           // [tokens], block * block_size + offset
  std::vector<int32_t> token_sequence;  // [tokens], row of block_tables
  std::vector<int32_t> block_tables;    // [sequences * max_blocks], padded with 0
  int32_t sequences = 0;
  int32_t max_blocks = 0;
  std::vector<int32_t> logits_rows;         // [rows], indices into tokens, each once, ascending
  std::vector<SequenceId> logits_sequence;  // [rows], whose row it is

  bool empty() const { return token_ids.empty(); }
};

}  // namespace normserve::scheduler
