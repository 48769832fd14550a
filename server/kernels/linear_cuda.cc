// SPDX-License-Identifier: Apache-2.0
// PackWeight, Linear, Embed and GatherRows on a CUDA device: weights stay as they are, [N, K], and products are
// cuBLAS's, through LibTorch. Under NORMSERVE_CUDA_EMULATED a product in float32 on the CPU stands in for it.
// Quantised weights have no kernel here yet and are refused.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <c10/util/Exception.h>

#include "kernels/cuda_rows.h"
#include "kernels/cuda_stream.h"
#include "kernels/device_rows.h"
#include "kernels/op_args.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {
namespace {

at::ScalarType DtypeOf(int64_t format) {
  TORCH_CHECK(format == static_cast<int64_t>(WeightFormat::kFloat32) ||
                  format == static_cast<int64_t>(WeightFormat::kBFloat16),
              "format: ", format, ", on this device allowed 0 (float32) and 1 (bfloat16)");
  return format == static_cast<int64_t>(WeightFormat::kFloat32) ? at::kFloat : at::kBFloat16;
}

void CheckWeight(const at::Tensor& weight, int64_t format, int64_t n, int64_t k) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.size(0) == n && weight.size(1) == k &&
                  weight.scalar_type() == DtypeOf(format),
              "panels: expected packed ", DtypeOf(format), " [", n, ", ", k, "], got ",
              weight.scalar_type(), " ", weight.sizes());
}

// A tensor of the caller's own, never a view of the checkpoint's mapped file.
at::Tensor PackWeightOp(const at::Tensor& weight, int64_t format) {
  TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", weight.sizes());
  return weight.to(DtypeOf(format), /*non_blocking=*/false, /*copy=*/true).contiguous();
}

// x W^T in y's dtype, summed in float32.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
#if defined(NORMSERVE_CUDA_EMULATED)
  // Row by row, so that no row's bits depend on how many there are.
  const at::Tensor w = weight.to(at::kFloat);
  at::Tensor y = at::empty({x.size(0), w.size(0)}, w.options());
  for (int64_t row = 0; row < x.size(0); ++row) y[row].copy_(at::mv(w, x[row].to(at::kFloat)));
  return y.to(dtype);
#else
  if (x.scalar_type() != weight.scalar_type()) {  // float32 activations: for checks, not for speed
    return at::mm(x.to(at::kFloat), weight.to(at::kFloat).t()).to(dtype);
  }
  return x.scalar_type() == dtype ? at::mm(x, weight.t()) : at::mm(x, weight.t(), dtype);
#endif
}

void LinearOp(const at::Tensor& x, const at::Tensor& weight, int64_t format, int64_t out_features,
              const MaybeTensor& bias, const at::Tensor& y) {
  CheckActivations("x", x, x.size(0), -1);
  CheckActivations("y", y, x.size(0), out_features);
  CheckWeight(weight, format, out_features, x.size(1));
  if (!bias.has_value()) {
    y.copy_(Product(x, weight, y.scalar_type()));
    return;
  }
  CheckFloats("bias", *bias, out_features);
  // Rounded once, after the bias, as on the CPU.
  y.copy_(Product(x, weight, at::kFloat) + *bias);
}

void CheckRange(const char* name, const at::Tensor& t, int64_t end) {
  const int32_t* values = HostInts(t);
  for (int64_t i = 0; values != nullptr && i < t.numel(); ++i) {
    TORCH_CHECK(values[i] >= 0 && values[i] < end, name, "[", i, "]: ", values[i], ", allowed 0..",
                end - 1);
  }
}

void EmbedOp(const at::Tensor& ids, const at::Tensor& weight, int64_t format, int64_t table_rows,
             double scale, const MaybeTensor& positions, const MaybeTensor& positions_table,
             const at::Tensor& out) {
  const int64_t tokens = out.size(0);
  EmbedRows args;
  args.width = out.size(-1);
  CheckWeight(weight, format, table_rows, args.width);
  args.out_type = CheckActivations("out", out, tokens, args.width);
  args.table_type =
      weight.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16;
  args.table = weight.const_data_ptr();
  args.ids = CheckInts("ids", ids, tokens);
  args.scale = static_cast<float>(scale);
  args.out = out.data_ptr();
  args.out_stride = out.stride(0);
  CheckRange("ids", ids, table_rows);
  TORCH_CHECK(positions.has_value() || !positions_table.has_value(),
              "positions: needed by positions_table");
  if (positions_table.has_value()) {
    args.positions = CheckInts("positions", *positions, tokens);
    args.positions_table = CheckFloats("positions_table", *positions_table, positions_table->numel());
    CheckRange("positions", *positions, positions_table->size(0));
  }
  if (tokens > 0) EmbedRowsCuda(args, tokens, CurrentStream());
}

void GatherRowsOp(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& out) {
  GatherArgs args;
  args.width = x.size(1);
  args.type = CheckActivations("x", x, x.size(0), args.width);
  TORCH_CHECK(CheckActivations("out", out, out.size(0), args.width) == args.type,
              "out: expected the dtype of x");
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  args.rows = CheckInts("rows", rows, out.size(0));
  args.out = out.data_ptr();
  args.out_stride = out.stride(0);
  CheckRange("rows", rows, x.size(0));
  if (out.size(0) > 0) GatherRowsCuda(args, out.size(0), CurrentStream());
}

}  // namespace

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) {
  m.impl("pack_weight", PackWeightOp);
  m.impl("linear", LinearOp);
  m.impl("embed", EmbedOp);
  m.impl("gather_rows", GatherRowsOp);
}

}  // namespace normserve::kernels
