// SPDX-License-Identifier: Apache-2.0
// Parts shared by the BHyT strategies (arXiv 2601.09719): the kappa schedule, one tanh-bounded norm,
// and the numbers of the second point, which takes no reduction of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "norm/norm_inputs.h"

namespace normserve::norm {

// Hard-coded in the authors' code; rms_norm_eps is used by RMSNorm alone.
inline constexpr double kBhytEps = 1e-6;

// kappa of a layer; `number` is the layer's index + 1, and layers + 1 for the final norm.
double KappaOf(const BhytOptions& options, int64_t number);

// gamma * tanh(lam / kappa * rsqrt(mean(x^2) + eps) * x), gamma and lam read from the file.
struct BoundedNorm {
  NormSpec spec;
  double lam = 0.0;
};
absl::StatusOr<BoundedNorm> ReadBoundedNorm(const NormInputs& inputs, const std::string& module,
                                            NormSite site, double kappa);

// v2 = var_mul * v1 + var_add.
struct SecondPoint {
  float var_mul = 1.0f;
  float var_add = 0.0f;
};
// What the formula of a method takes; c_attn is used by every method but eta.
struct SecondPointInputs {
  double c_attn = 0.0;
  double input_lam = 0.0;
  double kappa = 1.0;
  double gamma_mean_square = 1.0;  // 1 unless use_gamma_var
  double calibration = 1.0;
  double var_beta = 1.0;
  double var_eta = 0.0;
  double var_alpha = 1.0;
  double var_cross_beta = 0.0;
};
// Derives the constants of the second point; `method` is one of the known names.
SecondPoint DeriveSecondPoint(const std::string& method, const SecondPointInputs& in);

// || Vx^T O^T ||_F^2 / (T * hidden), V [kv_heads * head_dim, hidden], O [hidden, heads * head_dim] as
// stored (16-bit or float32), Vx = V with each kv head repeated heads / kv_heads times. float64.
double AttentionEnergy(const at::Tensor& value_weight, const at::Tensor& output_weight,
                       int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t seq_len);

}  // namespace normserve::norm
