// SPDX-License-Identifier: Apache-2.0
// Plain-pointer arguments of Activate; the same for every device, no torch here.
#pragma once

#include <cstdint>

#include "kernels/norm_rows.h"

namespace normserve::kernels {

struct ActivateRows {
  RowType type = RowType::kFloat32;
  const void* x = nullptr;  // [rows, 2 * width] gate | up when gated, else [rows, width]
  int64_t x_stride = 0;
  void* y = nullptr;  // [rows, width]
  int64_t y_stride = 0;
  int64_t width = 0;
  bool gated = false;  // silu(gate) * up; else gelu(x)
  bool has_gate_norm = false;
  bool has_up_norm = false;
  RowNorm gate;
  RowNorm up;
};

// Rows [begin, end) on the CPU.
void ActivateRowsCpu(const ActivateRows& args, int64_t begin, int64_t end);

}  // namespace normserve::kernels
