// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_tiles.h"

#include <algorithm>

namespace normserve::kernels {
namespace {

int64_t CeilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }

// A stretch of `count` ints at the end of what is laid out so far; moves the end. FlashInfer's arrays begin at
// multiples of 16 bytes.
int64_t Place(int64_t& end, int64_t count) {
  const int64_t begin = end;
  end = CeilDiv(end + count, 4) * 4;
  return begin;
}

}  // namespace

TileParts::TileParts(int64_t tokens, int64_t splits, int64_t heads, int64_t head_dim, int64_t element_bytes) {
  if (splits < 2) return;
  rows = tokens * splits;
  elements = rows * heads * head_dim;
  stats_at = CeilDiv(elements * element_bytes, 16) * 16;
  bytes = stats_at + rows * heads * static_cast<int64_t>(sizeof(float));
}

AttentionTilesLayout::AttentionTilesLayout(const AttentionTileShape& shape) {
  // Every sequence may end with a tile that is not full; where each has one token, it is that token's.
  const int64_t query_tiles = std::min(CeilDiv(shape.tokens * shape.group, kTileRows) + shape.sequences,
                                       shape.tokens * CeilDiv(shape.group, kTileRows));
  tiles = CeilDiv(query_tiles * shape.splits(), 4) * 4;
  query_begin = Place(ints, shape.sequences + 1);
  table_begin = Place(ints, shape.sequences + 1);
  last_block = Place(ints, shape.sequences);
  partial_begin = Place(ints, shape.sequences + 1);
  merge_begin = Place(ints, shape.tokens + 1);
  split_keys = Place(ints, 1);
  sequence = Place(ints, tiles);
  query_tile = Place(ints, tiles);
  split = Place(ints, tiles);
  valid = Place(ints, tiles / 4);
}

void FillAttentionTiles(const AttentionTileShape& shape, int64_t live, const int32_t* token_sequence,
                        const int32_t* positions, int32_t* out) {
  const AttentionTilesLayout at(shape);
  std::fill_n(out, at.ints, 0);
  out[at.split_keys] = static_cast<int32_t>(kTileKeys);
  auto* valid = reinterpret_cast<uint8_t*>(out + at.valid);
  int32_t token = 0, partial = 0;
  int64_t tile = 0;
  for (int64_t s = 0; s < shape.sequences; ++s) {
    out[at.query_begin + s] = token;
    out[at.table_begin + s] = static_cast<int32_t>(s * shape.table_blocks);
    out[at.partial_begin + s] = partial;
    const int32_t first = token;
    while (token < live && token_sequence[token] == s) ++token;
    const int64_t context = token > first ? positions[token - 1] + 1 : 0;
    out[at.last_block + s] = static_cast<int32_t>(context - (shape.table_blocks - 1) * shape.block_size);
    const int64_t splits = CeilDiv(context, kTileKeys);
    for (int64_t q = 0; q < CeilDiv((token - first) * shape.group, kTileRows); ++q) {
      for (int64_t k = 0; k < splits; ++k, ++tile) {
        out[at.sequence + tile] = static_cast<int32_t>(s);
        out[at.query_tile + tile] = static_cast<int32_t>(q);
        out[at.split + tile] = static_cast<int32_t>(k);
        valid[tile] = 1;
      }
    }
    for (int32_t t = first; t < token; ++t, partial += static_cast<int32_t>(splits)) {
      out[at.merge_begin + t] = partial;
    }
  }
  out[at.query_begin + shape.sequences] = token;
  out[at.table_begin + shape.sequences] = static_cast<int32_t>(shape.sequences * shape.table_blocks);
  out[at.partial_begin + shape.sequences] = partial;
  // Tokens that are padding have no splits.
  std::fill_n(out + at.merge_begin + token, shape.tokens + 1 - token, partial);
}

}  // namespace normserve::kernels
