// SPDX-License-Identifier: Apache-2.0
// The arithmetic of BHyT's load-time constants, all in double and rounded once to float.
#include "norm/bhyt_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>

#include <cmath>

#include "base/status_macros.h"
#include "norm/plan_builder.h"

namespace normserve::norm {

double KappaOf(const BhytOptions& options, int64_t number) {
  const double l = static_cast<double>(number);
  if (options.kappa_schedule == "decay") return options.kappa / std::sqrt(l);
  if (options.kappa_schedule == "grow") return options.kappa * std::sqrt(l);
  if (options.kappa_schedule == "mild_grow") return options.kappa * std::pow(l, 0.25);
  return options.kappa;
}

// MATCHES: lam comes from the file; the config's input_layer_lam is only the initial value.
absl::StatusOr<BoundedNorm> ReadBoundedNorm(const NormInputs& inputs, const std::string& module,
                                            NormSite site, double kappa) {
  BoundedNorm norm;
  NS_ASSIGN_OR_RETURN(norm.spec, RmsSpec(inputs, module, site, kBhytEps));
  NS_ASSIGN_OR_RETURN(const float lam, inputs.tensors->Scalar(module + ".lam"));
  norm.lam = static_cast<double>(lam);
  norm.spec.op.numbers.phi = kernels::NormPhi::kTanh;
  norm.spec.op.numbers.gain = static_cast<float>(norm.lam / kappa);
  return norm;
}

SecondPoint DeriveSecondPoint(const std::string& method, const SecondPointInputs& in) {
  const double scaled_lam = in.input_lam / in.kappa;
  const double corr = in.c_attn * scaled_lam * scaled_lam * in.gamma_mean_square;
  double mul = 1.0;
  double add = corr;
  if (method == "beta") {
    add = in.var_beta * corr;
  } else if (method == "eta") {
    mul = 1.0 + in.var_eta;
    add = 0.0;
  } else if (method == "residual_aware") {
    mul = 1.0 + in.var_cross_beta;
    add = in.var_alpha * corr;
  }
  return {static_cast<float>(mul * in.calibration), static_cast<float>(add * in.calibration)};
}

// With W = Vx^T O^T = V^T S^T, where S sums O's columns over the heads that share a kv head:
// ||W||^2 = sum((V V^T) * (S^T S)), which needs no hidden x hidden product.
double AttentionEnergy(const at::Tensor& value_weight, const at::Tensor& output_weight,
                       int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t seq_len) {
  const int64_t hidden = output_weight.size(0);
  const at::Tensor v = value_weight.to(at::kDouble);
  const at::Tensor s = output_weight.to(at::kDouble)
                           .reshape({hidden, kv_heads, heads / kv_heads, head_dim})
                           .sum(2)
                           .reshape({hidden, kv_heads * head_dim});
  const at::Tensor vv = at::matmul(v, v.t());
  const at::Tensor ss = at::matmul(s.t(), s);
  return (vv * ss).sum().item<double>() / (static_cast<double>(seq_len) * hidden);
}

}  // namespace normserve::norm
