// SPDX-License-Identifier: Apache-2.0
// Glue of Norm, ResidualNorm and LinearResidualNorm: argument contracts and row pointers, the same for every
// device.
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "kernels/device_rows.h"
#include "kernels/op_args.h"

namespace normserve::kernels {
namespace {

void NormOf(const at::Tensor& x, Numbers norm, const MaybeTensor& gamma, const MaybeTensor& beta,
             const MaybeTensor& row_stat, const at::Tensor& y) {
  NormRows rows;
  rows.type = CheckActivations("x", x, x.size(0), -1);
  rows.width = x.size(1);
  TORCH_CHECK(CheckActivations("y", y, x.size(0), rows.width) == rows.type,
              "y: expected the dtype of x");
  rows.norm = ToRowNorm("norm", norm, gamma, beta, rows.width);
  rows.row_stat = CheckRowStat(row_stat, rows.norm.numbers, x.size(0));
  rows.x = x.const_data_ptr();
  rows.x_stride = x.stride(0);
  rows.y = y.data_ptr();
  rows.y_stride = y.stride(0);
  RunNormRows(rows, x.size(0));
}

ResidualRows ResidualArgs(const at::Tensor& h, const at::Tensor& delta, Numbers out_norm,
                          const MaybeTensor& out_gamma, const MaybeTensor& out_beta, Numbers next_norm,
                          const MaybeTensor& next_gamma, const MaybeTensor& next_beta,
                          const MaybeTensor& row_stat, const MaybeTensor& y) {
  ResidualRows rows;
  rows.type = CheckActivations("h", h, h.size(0), -1);
  rows.width = h.size(1);
  TORCH_CHECK(CheckActivations("delta", delta, h.size(0), rows.width) == rows.type,
              "delta: expected the dtype of h");
  rows.h = h.data_ptr();
  rows.h_stride = h.stride(0);
  rows.delta = delta.const_data_ptr();
  rows.delta_stride = delta.stride(0);
  rows.has_out = !out_norm.empty();
  rows.has_next = !next_norm.empty();
  if (rows.has_out) {
    rows.out = ToRowNorm("out_norm", out_norm, out_gamma, out_beta, rows.width);
    TORCH_CHECK(rows.out.numbers.stat != NormStat::kCarried,
                "out_norm: a carried statistic has no meaning before the residual add");
  }
  if (rows.has_next) {
    TORCH_CHECK(y.has_value(), "y: needed by next_norm");
    TORCH_CHECK(CheckActivations("y", *y, h.size(0), rows.width) == rows.type,
                "y: expected the dtype of h");
    rows.next = ToRowNorm("next_norm", next_norm, next_gamma, next_beta, rows.width);
    rows.row_stat = CheckRowStat(row_stat, rows.next.numbers, h.size(0));
    rows.y = y->data_ptr();
    rows.y_stride = y->stride(0);
  }
  return rows;
}

void ResidualNormOf(const at::Tensor& h, const at::Tensor& delta, Numbers out_norm,
                    const MaybeTensor& out_gamma, const MaybeTensor& out_beta, Numbers next_norm,
                    const MaybeTensor& next_gamma, const MaybeTensor& next_beta,
                    const MaybeTensor& row_stat, const MaybeTensor& y) {
  RunResidualRows(ResidualArgs(h, delta, out_norm, out_gamma, out_beta, next_norm, next_gamma, next_beta,
                               row_stat, y),
                  h.size(0));
}

void LinearResidualNormOf(const at::Tensor& x, const at::Tensor& panels, int64_t format,
                          int64_t out_features, int64_t rows_per_product, const MaybeTensor& bias, const at::Tensor& delta,
                          const at::Tensor& h, Numbers next_norm, const MaybeTensor& next_gamma,
                          const MaybeTensor& next_beta, const MaybeTensor& row_stat, const MaybeTensor& y) {
  const ResidualRows residual = ResidualArgs(h, delta, Numbers(), std::nullopt, std::nullopt, next_norm,
                                             next_gamma, next_beta, row_stat, y);
  TORCH_CHECK(x.dim() == 2 && x.size(0) == h.size(0) && out_features == residual.width, "x: expected [",
              h.size(0), ", K] and a weight of ", residual.width, " outputs, got ", x.sizes(), " and ",
              out_features);
  // Outputs that are done are written while others still read x.
  TORCH_CHECK(x.size(0) == 0 || residual.h != x.const_data_ptr(), "h: must not be x");
  TORCH_CHECK(residual.y == nullptr || residual.y != x.const_data_ptr(), "y: must not be x");
  if (RunLinearResidual(x, panels, format, out_features, rows_per_product, bias, residual)) return;
  RunLinear(x, panels, format, out_features, rows_per_product, bias, delta);
  RECORD_FUNCTION("normserve::residual_norm", {});  // who times operators sees what of this one is the norm
  RunResidualRows(residual, h.size(0));
}

}  // namespace

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) {
  m.impl("norm", NormOf);
  m.impl("residual_norm", ResidualNormOf);
  m.impl("linear_residual_norm", LinearResidualNormOf);
}

}  // namespace normserve::kernels
