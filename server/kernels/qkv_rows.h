// SPDX-License-Identifier: Apache-2.0
// Plain-pointer arguments of QkvNormRotaryWrite; the same for every device, no torch here.
#pragma once

#include <cstdint>

#include "kernels/norm_rows.h"

namespace normserve::kernels {

inline constexpr int64_t kMaxHeadDim = 1024;

struct QkvRows {
  RowType type = RowType::kFloat32;        // of qkv
  RowType cache_type = RowType::kFloat32;  // of both caches: that of qkv, or bfloat16
  bool int8_cache = false;  // bytes with scales instead, under float32 and an even head_dim, on the CPU only
  void* qkv = nullptr;  // [tokens, (heads + 2 kv_heads) * head_dim]; q is overwritten
  int64_t qkv_stride = 0;
  bool has_norm[3] = {false, false, false};  // q, k, v
  RowNorm norm[3];
  bool rotary = false;
  bool interleaved = false;          // pairs (2i, 2i + 1); else (i, i + head_dim / 2)
  const float* cos_sin = nullptr;    // [positions, head_dim]: cosines, then sines
  int64_t cos_sin_stride = 0;
  int64_t cos_sin_positions = 0;
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* slots = nullptr;      // [tokens], negative: nothing is written
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // at most kMaxHeadDim
  int64_t block_size = 0;
  // [blocks, kv_heads, head_dim, block_size]; with keys_by_position as v_cache, which the CPU has no kernel for.
  // A bfloat16 cache of the CPU lies by pairs, as a linear layer's weights do: keys [blocks, kv_heads, head_dim / 2,
  // block_size, 2] and values [blocks, kv_heads, block_size / 2, head_dim, 2], for an even head_dim only.
  // An int8 cache lies by pairs, too, but each block's bytes of one kv head come after its float32 scales [block_size]:
  // [blocks, kv_heads, block_size * (head_dim + 4)]. A position's scale is its largest magnitude / 127; NaN, over zeros,
  // where it had a NaN or Inf, and 0 where it had nothing from 1e-30 on.
  void* k_cache = nullptr;
  bool keys_by_position = false;
  void* v_cache = nullptr;  // [blocks, kv_heads, block_size, head_dim]
};

// Tokens [begin, end) on the CPU.
void QkvRowsCpu(const QkvRows& args, int64_t begin, int64_t end);

}  // namespace normserve::kernels
