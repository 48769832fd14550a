// SPDX-License-Identifier: Apache-2.0
// The operators on a CUDA device, by the same plain-pointer arguments as on the CPU: each function puts one
// kernel (PagedAttention: one or two) on the stream and returns. Pointers are the device's. No torch here,
// so that the .cu files that define these compile in seconds, and under g++ for the emulator.
#pragma once

#include <cstdint>

#include "kernels/activate_rows.h"
#include "kernels/attention_rows.h"
#include "kernels/norm_rows.h"
#include "kernels/qkv_rows.h"
#include "kernels/sample_rows.h"

struct CUstream_st;

namespace normserve::kernels {

using CudaStream = CUstream_st*;  // cudaStream_t

// norm.cu
void NormRowsCuda(const NormRows& args, int64_t rows, CudaStream stream);
void ResidualRowsCuda(const ResidualRows& args, int64_t rows, CudaStream stream);

// activate.cu
void ActivateRowsCuda(const ActivateRows& args, int64_t rows, CudaStream stream);

// qkv.cu. A position outside [0, cos_sin_positions) gives NaN, never a read outside the table.
void QkvRowsCuda(const QkvRows& args, int64_t tokens, CudaStream stream);

// attention.cu. A context is cut into splits of a fixed number of positions, so that a row's result
// depends on its own context alone. `scratch` holds AttentionScratchFloats floats, or is null (always
// where that is 0): every block then merges its own splits, to the same bits. `max_context` is at
// least the largest position + 1 of any token. Both caches begin at a multiple of 16 bytes.
int64_t AttentionScratchFloats(const AttentionRows& args, int64_t tokens, int64_t max_context);
void AttentionRowsCuda(const AttentionRows& args, int64_t tokens, int64_t max_context, float* scratch,
                       CudaStream stream);

// gather.cu. out[t] = scale * table[ids[t]] (+ positions_table[positions[t]]), rounded once.
struct EmbedRows {
  RowType table_type = RowType::kFloat32;
  RowType out_type = RowType::kFloat32;
  const void* table = nullptr;     // [vocabulary, width]
  const int32_t* ids = nullptr;    // [tokens]
  float scale = 1.0f;
  const float* positions_table = nullptr;  // [positions, width], or null
  const int32_t* positions = nullptr;      // [tokens], with positions_table
  void* out = nullptr;                     // [tokens, width]
  int64_t out_stride = 0;
  int64_t width = 0;
};
void EmbedRowsCuda(const EmbedRows& args, int64_t tokens, CudaStream stream);

// out[r] = x[rows[r]].
struct GatherArgs {
  RowType type = RowType::kFloat32;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* rows = nullptr;  // [count]
  void* out = nullptr;            // [count, width]
  int64_t out_stride = 0;
  int64_t width = 0;
};
void GatherRowsCuda(const GatherArgs& args, int64_t count, CudaStream stream);

// sample.cu. The launch depends on `rows` alone; all else is read on the device, so a graph may hold it.
void SampleRowsCuda(const SampleArgs& args, int64_t rows, CudaStream stream);

}  // namespace normserve::kernels
