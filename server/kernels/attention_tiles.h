// SPDX-License-Identifier: Apache-2.0
// A step's attention cut into tiles, as FlashInfer's kernel reads it (attention_flashinfer.cuh): which queries
// meet which keys, decided on the host, once per step, for all layers. Tiles and splits are of fixed sizes, so
// that a row's result depends on its own sequence alone. Plain arrays, no torch here.
#pragma once

#include <cstdint>

namespace normserve::kernels {

inline constexpr int64_t kTileRows = 16;   // queries of a tile times the heads that share a kv head
inline constexpr int64_t kTileKeys = 512;  // positions of a split

// What decides how many tiles a step can have, and where in their block of ints each array lies.
struct AttentionTileShape {
  int64_t tokens = 0;
  int64_t sequences = 0;     // rows of the block table
  int64_t table_blocks = 0;  // columns of the block table
  int64_t block_size = 0;
  int64_t group = 0;  // heads per kv head

  // Splits of the longest context that the table can name.
  int64_t splits() const { return (table_blocks * block_size + kTileKeys - 1) / kTileKeys; }
};

// What a step's tiles leave in parts, to be merged: nothing where no context can be longer than a split.
struct TileParts {
  int64_t rows = 0;           // [rows, heads, head_dim] of the activations' type, and [rows, heads] float32
  int64_t elements = 0;
  int64_t bytes = 0;          // of both
  int64_t stats_at = 0;       // bytes; the parts come first

  TileParts(int64_t tokens, int64_t splits, int64_t heads, int64_t head_dim, int64_t element_bytes);
};
// FlashInfer counts elements of parts in 32 bits.
inline constexpr int64_t kMostPartElements = (int64_t{1} << 32) - 1;

// Offsets in ints. A sequence's queries are neighbours, and its last ones. Sequences without a token have none.
struct AttentionTilesLayout {
  explicit AttentionTilesLayout(const AttentionTileShape& shape);

  int64_t ints = 0;
  int64_t tiles = 0;            // as many as the shape can need, and a multiple of 4; `valid` says which exist
  int64_t query_begin = 0;      // [sequences + 1] tokens
  int64_t table_begin = 0;      // [sequences + 1] entries of the flat block table
  int64_t last_block = 0;       // [sequences] context less all but the last block of a table row; may be negative
  int64_t partial_begin = 0;    // [sequences + 1] (token, split) pairs
  int64_t merge_begin = 0;      // [tokens + 1] the same, by token
  int64_t split_keys = 0;       // [1] kTileKeys
  int64_t sequence = 0;         // [tiles]
  int64_t query_tile = 0;       // [tiles] of the sequence
  int64_t split = 0;            // [tiles]
  int64_t valid = 0;            // [tiles] bytes, 0 or 1
};

// Writes layout.ints ints. The first `live` of the shape's tokens count: token_sequence and positions, [live],
// have sequences in ascending order, and positions of one sequence one after the other.
void FillAttentionTiles(const AttentionTileShape& shape, int64_t live, const int32_t* token_sequence,
                        const int32_t* positions, int32_t* out);

}  // namespace normserve::kernels
