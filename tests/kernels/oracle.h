// SPDX-License-Identifier: Apache-2.0
// The slow truth: every operator as plain loops in double on values that were rounded to the
// activation dtype. Written from the formulas, sharing no code with the kernels.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "kernels/ops.h"

namespace normserve::kernels {

// All take and return float64 tensors (any input dtype is widened exactly).
struct OracleNorm {
  at::Tensor y;     // [rows, width]
  at::Tensor stat;  // [rows], of norms whose group is the row
};
OracleNorm NormOracle(const at::Tensor& x, const Norm& norm, const at::Tensor& row_stat);

at::Tensor LinearOracle(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

at::Tensor ActivateOracle(const at::Tensor& x, Activation activation, const OptionalNorm& gate,
                          const OptionalNorm& up);

// x [tokens, heads, dim], cos_sin rows of the tokens [tokens, dim].
at::Tensor RotaryOracle(const at::Tensor& x, const at::Tensor& cos_sin, RotaryPairs pairs);

// One sequence: q [tokens, heads, dim] at `positions`, keys and values [context, kv_heads, dim].
at::Tensor AttentionOracle(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& positions, double scale);

}  // namespace normserve::kernels
