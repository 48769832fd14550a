// SPDX-License-Identifier: Apache-2.0
// Glue of Activate and LinearGate: argument contracts and row pointers, the same for every device.
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "kernels/device_rows.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"

namespace normserve::kernels {
namespace {

void ActivateOp(const at::Tensor& x, int64_t activation, Numbers gate_norm,
                 const MaybeTensor& gate_gamma, const MaybeTensor& gate_beta, Numbers up_norm,
                 const MaybeTensor& up_gamma, const MaybeTensor& up_beta, const at::Tensor& y) {
  ActivateRows rows;
  rows.gated = static_cast<Activation>(activation) == Activation::kSiluGate;
  rows.type = CheckActivations("y", y, x.size(0), -1);
  rows.width = y.size(1);
  const int64_t x_width = rows.gated ? 2 * rows.width : rows.width;
  TORCH_CHECK(CheckActivations("x", x, x.size(0), x_width) == rows.type,
              "x: expected the dtype of y");
  rows.x = x.const_data_ptr();
  rows.x_stride = x.stride(0);
  rows.y = y.data_ptr();
  rows.y_stride = y.stride(0);
  rows.has_gate_norm = !gate_norm.empty();
  rows.has_up_norm = !up_norm.empty();
  TORCH_CHECK(rows.gated || !rows.has_up_norm, "up_norm: there is no up projection without a gate");
  if (rows.has_gate_norm) {
    rows.gate = ToRowNorm("gate_norm", gate_norm, gate_gamma, gate_beta, rows.width);
  }
  if (rows.has_up_norm) rows.up = ToRowNorm("up_norm", up_norm, up_gamma, up_beta, rows.width);
  TORCH_CHECK(rows.gate.numbers.stat != NormStat::kCarried &&
                  rows.up.numbers.stat != NormStat::kCarried,
              "gate_norm, up_norm: no statistic to carry");
  RunActivateRows(rows, x.size(0));
}

void LinearGateOp(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
                  int64_t rows_per_product, const MaybeTensor& bias, const at::Tensor& gate_up, const at::Tensor& y) {
  ActivateRows gated;
  gated.gated = true;
  gated.type = CheckActivations("y", y, x.size(0), -1);
  gated.width = y.size(1);
  TORCH_CHECK(out_features == 2 * gated.width, "y: expected [", x.size(0), ", ", out_features, " / 2], got ", y.sizes());
  gated.y = y.data_ptr();
  gated.y_stride = y.stride(0);
  TORCH_CHECK(CheckActivations("gate_up", gate_up, x.size(0), out_features) == gated.type,
              "gate_up: expected the dtype of y");
  TORCH_CHECK(x.size(0) == 0 || y.const_data_ptr() != x.const_data_ptr(), "y: must not be x");
  if (RunLinearGate(x, panels, format, out_features, rows_per_product, bias, gated)) return;
  RunLinear(x, panels, format, out_features, rows_per_product, bias, gate_up);
  gated.x = gate_up.const_data_ptr();
  gated.x_stride = gate_up.stride(0);
  RECORD_FUNCTION("normserve::activate", {});  // who times operators sees what of this one is not the product
  RunActivateRows(gated, x.size(0));
}

}  // namespace

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) {
  m.impl("activate", ActivateOp);
  m.impl("linear_gate", LinearGateOp);
}

}  // namespace normserve::kernels
