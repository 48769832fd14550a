// SPDX-License-Identifier: Apache-2.0
// Frequencies of each rope type. Torch operations in the reference's order, so that float32 rounds as
// it does there.
#include "model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

namespace normserve::model {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// base ** (0, 2, 4, ... / head_dim)
at::Tensor BasePowers(double base, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  return at::pow(at::Scalar(base), exponents);
}

// Llama 3.1: long wavelengths are slowed down, short ones kept, those between interpolated.
at::Tensor Llama3(const RopeConfig& rope, const at::Tensor& inverse) {
  const double original = static_cast<double>(rope.original_max_positions);
  const at::Tensor wavelength = kTwoPi / inverse;
  const at::Tensor slowed =
      at::where(wavelength > original / rope.low_freq_factor, inverse / rope.factor, inverse);
  const at::Tensor smooth = (original / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * slowed / rope.factor + smooth * slowed;
  const at::Tensor is_medium = at::logical_and(wavelength >= original / rope.high_freq_factor,
                                               wavelength <= original / rope.low_freq_factor);
  return at::where(is_medium, blended, slowed);
}

double YarnMagnitude(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& rope, double factor) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return YarnMagnitude(factor, rope.mscale) / YarnMagnitude(factor, rope.mscale_all_dim);
  }
  return YarnMagnitude(factor, 1.0);
}

// The dimension whose wavelength makes `rotations` turns over the original context.
double YarnDimension(double rotations, int64_t head_dim, double base, double original) {
  return static_cast<double>(head_dim) * std::log(original / (rotations * kTwoPi)) /
         (2.0 * std::log(base));
}

// YaRN, arXiv 2309.00071. MATCHES: with original_max_position_embeddings given, transformers takes
// the ratio of the two lengths for the factor, whatever `factor` says.
RopeFrequencies Yarn(const RopeConfig& rope, int64_t head_dim, int64_t max_positions) {
  double factor = rope.factor;
  double original = static_cast<double>(max_positions);
  if (rope.original_max_positions > 0) {
    original = static_cast<double>(rope.original_max_positions);
    factor = static_cast<double>(max_positions) / original;
  }
  const at::Tensor powers = BasePowers(rope.theta, head_dim);
  const at::Tensor extrapolated = 1.0 / powers;
  const at::Tensor interpolated = 1.0 / (factor * powers);
  const double last = static_cast<double>(head_dim - 1);
  const double low = std::max(
      0.0, std::floor(YarnDimension(rope.beta_fast, head_dim, rope.theta, original)));
  double high =
      std::min(last, std::ceil(YarnDimension(rope.beta_slow, head_dim, rope.theta, original)));
  if (low == high) high += 0.001;
  const at::Tensor ramp =
      at::clamp((at::arange(head_dim / 2, at::kFloat) - low) / (high - low), 0, 1);
  const at::Tensor keep = 1 - ramp;
  RopeFrequencies frequencies;
  frequencies.inverse = interpolated * (1 - keep) + extrapolated * keep;
  frequencies.attention_factor = YarnAttentionFactor(rope, factor);
  return frequencies;
}

}  // namespace

RopeFrequencies MakeRopeFrequencies(const RopeConfig& rope, int64_t head_dim,
                                    int64_t max_positions) {
  if (rope.type == RopeType::kYarn) return Yarn(rope, head_dim, max_positions);
  RopeFrequencies frequencies;
  frequencies.inverse = 1.0 / BasePowers(rope.theta, head_dim);
  if (rope.type == RopeType::kLinear) frequencies.inverse = frequencies.inverse / rope.factor;
  if (rope.type == RopeType::kLlama3) frequencies.inverse = Llama3(rope, frequencies.inverse);
  return frequencies;
}

at::Tensor MakeRopeTable(const RopeConfig& rope, int64_t head_dim, int64_t max_positions) {
  if (rope.type == RopeType::kNone) return at::Tensor();
  const RopeFrequencies frequencies = MakeRopeFrequencies(rope, head_dim, max_positions);
  const at::Tensor positions = at::arange(max_positions, at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1) * frequencies.inverse.unsqueeze(0);
  return at::cat({at::cos(angles) * frequencies.attention_factor,
                  at::sin(angles) * frequencies.attention_factor},
                 1)
      .contiguous();
}

}  // namespace normserve::model
