// SPDX-License-Identifier: Apache-2.0
// The operators on a CUDA device, by the same plain-pointer arguments as on the CPU: each function puts one
// kernel (PagedAttention: one or two) on the stream and returns. Pointers are the device's. No torch here,
// so that the .cu files that define these compile in seconds, and under g++ for the emulator.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/activate_rows.h"
#include "kernels/attention_rows.h"
#include "kernels/norm_rows.h"
#include "kernels/qkv_rows.h"
#include "kernels/sample_rows.h"
#include "kernels/weight_format.h"

struct CUstream_st;

namespace normserve::kernels {

using CudaStream = CUstream_st*;  // cudaStream_t

// norm.cu. A norm that reduces does so over at most kMostGroup elements.
inline constexpr int64_t kMostGroup = 16384;
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

// attention_tiles_cuda.cc
// Why models with such heads have no attention by tiles here; empty: they have.
std::string AttentionTilesFault(RowType type, int64_t head_dim);
// What went wrong, as a sentence; empty: nothing.
std::string AttentionTilesCuda(const AttentionTileArgs& args, CudaStream stream);

// linear.cu. y = x W^T + bias, for few rows; a row's bits depend on that row alone, not on `rows`. x is
// float32 or bfloat16. No output may be x: other blocks still read it.
struct CudaLinearRows {
  RowType x_type = RowType::kFloat32;
  RowType y_type = RowType::kFloat32;
  WeightFormat format = WeightFormat::kFloat32;  // not kInt4, kBFloat16Dot
  const void* weight = nullptr;  // [outputs] rows as in weight_format.h
  int64_t weight_stride = 0;     // bytes
  const float* bias = nullptr;   // [outputs], or null
  const void* x = nullptr;       // [rows, inputs]
  int64_t x_stride = 0;
  void* y = nullptr;  // [rows, outputs]; not written with a residual
  int64_t y_stride = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  // With a residual: h += y rounded to y_type, next_y = next(h), both of y_type: the same bits as this and
  // then ResidualRowsCuda.
  bool has_residual = false;
  bool has_next = false;
  void* h = nullptr;  // [rows, outputs]
  int64_t h_stride = 0;
  RowNorm next;
  const float* row_stat = nullptr;  // [rows], where next's statistic is carried
  void* next_y = nullptr;           // [rows, outputs]
  int64_t next_y_stride = 0;
};
inline constexpr int64_t kMaxLinearRows = 16;
// Whether `next` can follow in the same pass: it has no statistic, or a carried one. To measure one takes the
// whole row, which no block has.
bool LinearTakesResidual(const RowNorm& next);
void LinearRowsCuda(const CudaLinearRows& args, int64_t rows, CudaStream stream);
// The emulated device only: the same bits by one thread, for products that are too much for the emulator.
void LinearRowsInOrder(const CudaLinearRows& args, int64_t rows, CudaStream stream);

// widen.cu. A quantised weight's values, scale * q, rounded to out_type.
struct WidenRows {
  WeightFormat format = WeightFormat::kInt8;  // or kFloat8
  RowType out_type = RowType::kBFloat16;
  const void* weight = nullptr;  // as above
  int64_t weight_stride = 0;     // bytes
  void* out = nullptr;           // [rows, inputs], packed
  int64_t inputs = 0;
};
void WidenWeightCuda(const WidenRows& args, int64_t rows, CudaStream stream);

// gather.cu. out[t] = scale * table[ids[t]] (+ positions_table[positions[t]]), rounded once.
struct EmbedRows {
  RowType table_type = RowType::kFloat32;
  // kInt8 or kFloat8: the table is a weight in that format, as linear.cu has it, and table_type means
  // nothing.
  WeightFormat table_format = WeightFormat::kFloat32;
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
void EmbedQuantisedCuda(const EmbedRows& args, int64_t tokens, CudaStream stream);  // widen.cu

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
