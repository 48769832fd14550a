// SPDX-License-Identifier: Apache-2.0
// Row reductions for the sampler, on plain float rows: Highway with run-time dispatch, no torch.
// Deterministic: the same row gives the same bits on one machine and target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace normserve::kernels {

struct RowMax {
  float value;
  uint32_t index;  // lowest index among equals
  bool finite;     // false when any element of the row is NaN or Inf
};
// row[0..n), n >= 1.
RowMax MaxOfRow(const float* row, size_t n);

// log(sum(exp(row - max))) + max, the sum in double over fixed-order lanes. Row must be finite.
double LogSumExp(const float* row, size_t n, float max);

// out[i] = exp(row[i] - max). May alias.
void ExpRow(const float* row, size_t n, float max, float* out);

}  // namespace normserve::kernels
