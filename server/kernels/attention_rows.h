// SPDX-License-Identifier: Apache-2.0
// Plain-pointer arguments of PagedAttention; the same for every device, no torch here.
#pragma once

#include <cstdint>

#include "kernels/attention_tiles.h"
#include "kernels/norm_rows.h"
#include "kernels/qkv_rows.h"

namespace normserve::kernels {

struct AttentionRows {
  RowType type = RowType::kFloat32;        // of qkv and out
  RowType cache_type = RowType::kFloat32;  // of both caches: that of qkv, or bfloat16
  bool int8_cache = false;                 // as QkvRows has it
  const void* qkv = nullptr;  // [tokens, (heads + 2 kv_heads) * head_dim]; its q part is read
  int64_t qkv_stride = 0;
  // As QkvRows has them; by tiles keys lie as values do.
  const void* k_cache = nullptr;         // [blocks, kv_heads, head_dim, block_size]
  const void* v_cache = nullptr;         // [blocks, kv_heads, block_size, head_dim]
  const int32_t* block_tables = nullptr;  // [sequences, max_blocks]
  int64_t block_tables_stride = 0;
  const int32_t* token_sequence = nullptr;  // [tokens]
  const int32_t* positions = nullptr;       // [tokens]
  float scale = 1.0f;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;    // at most kMaxHeadDim
  int64_t block_size = 0;  // a multiple of 16
  void* out = nullptr;     // [tokens, heads * head_dim]
  int64_t out_stride = 0;
};

// PagedAttention by tiles. The caches have the type of qkv, out is packed, keys lie by position. `partial` and
// `partial_stats` are as TileParts says; both null where the shape has one split.
struct AttentionTileArgs {
  AttentionRows rows;
  AttentionTileShape shape;
  const int32_t* tiles = nullptr;  // as AttentionTilesLayout has it
  void* partial = nullptr;
  float* partial_stats = nullptr;
};

// Items [begin, end) of tokens * kv_heads on the CPU; item = token * kv_heads + kv head.
void AttentionRowsCpu(const AttentionRows& args, int64_t begin, int64_t end);

// What that is over a bfloat16 cache where HasBFloat16Dot.
void BFloat16DotAttention(const AttentionRows& args, int64_t begin, int64_t end);
// And over an int8 cache where HasVnni.
void VnniAttention(const AttentionRows& args, int64_t begin, int64_t end);

}  // namespace normserve::kernels
