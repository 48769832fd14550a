// SPDX-License-Identifier: Apache-2.0
// Plain-pointer arguments of Linear on the CPU, and of its packing; no torch here.
//
// Weights lie in panels of 16 outputs, [panels, k, 16]: one vector load gives the weights of 16
// outputs at one input, every output is one chain of float32 multiply-adds over the inputs in order,
// and no horizontal sum exists. So a row's bits depend on nothing but that row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/norm_rows.h"

namespace normserve::kernels {

inline constexpr int64_t kPanel = 16;

struct LinearRows {
  RowType x_type = RowType::kFloat32;
  RowType w_type = RowType::kFloat32;
  RowType y_type = RowType::kFloat32;
  const void* x = nullptr;  // [rows, k]
  int64_t x_stride = 0;
  const void* panels = nullptr;  // [ceil(n / 16), k, 16]
  const float* bias = nullptr;   // [n], or null
  void* y = nullptr;             // [rows, n]
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// Rows are handled in tiles of nearly equal height; a tile's inputs are interleaved, [k, height], in
// float32, so that the kernel reads them in one stream.
struct RowTiles {
  int64_t count = 0;
  int64_t first_row(int64_t tile, int64_t rows) const { return tile * rows / count; }
};
RowTiles TilesOf(int64_t rows);

// Panels that one kernel call takes at once for these rows: the grain for splitting the work.
int64_t PanelsAtOnce(int64_t rows);

// Interleaves the inputs of tiles [begin, end) into `packed` [rows * k].
void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed);

// Outputs of panels [begin, end) for all rows, from the packed inputs.
void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

}  // namespace normserve::kernels
