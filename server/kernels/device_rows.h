// SPDX-License-Identifier: Apache-2.0
// What an operator's glue (*_op.cc) needs of a device: its row kernels, started on all rows. The glue is
// compiled once per device, with NORMSERVE_DISPATCH_KEY naming the tensors that it serves, and linked with
// one of device_rows_cpu.cc and device_rows_cuda.cc. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>

#include "kernels/activate_rows.h"
#include "kernels/attention_rows.h"
#include "kernels/norm_rows.h"
#include "kernels/op_args.h"
#include "kernels/qkv_rows.h"

// Registers operators under a key that is a macro itself.
#define NORMSERVE_IMPLEMENT_FOR(key, m) TORCH_LIBRARY_IMPL(normserve, key, m)

namespace normserve::kernels {

void RunNormRows(const NormRows& args, int64_t rows);
void RunResidualRows(const ResidualRows& args, int64_t rows);
void RunActivateRows(const ActivateRows& args, int64_t rows);
void RunQkvRows(const QkvRows& args, int64_t tokens);
// `max_context` is the number of positions that the block tables can name.
void RunAttentionRows(const AttentionRows& args, int64_t tokens, int64_t max_context);
// A TORCH_CHECK failure where the device has no such kernel.
void RunAttentionTiles(const AttentionTileArgs& args);

// The Linear operator (linear_cpu.cc, linear_cuda.cc), and the same with h += y; y = next(h) of `residual` in one
// pass: false, and nothing done, where the device has no such pass for these rows or this norm. RunLinearGate: as
// much of LinearGate, whose result goes to y of `gated`.
void RunLinear(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features, int64_t rows_per_product,
               const MaybeTensor& bias, const at::Tensor& y);
bool RunLinearResidual(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features, int64_t rows_per_product,
                       const MaybeTensor& bias, const ResidualRows& residual);
bool RunLinearGate(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features, int64_t rows_per_product,
                   const MaybeTensor& bias, const ActivateRows& gated);

// The values of an int32 vector, for checks before a kernel runs: null where the host cannot read them.
const int32_t* HostInts(const at::Tensor& t);

}  // namespace normserve::kernels
