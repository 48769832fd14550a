// SPDX-License-Identifier: Apache-2.0
// One norm as a row of numbers, and the plain-pointer arguments of the row kernels. The same for
// every device; no torch here.
//
//   y = gamma * phi(s * (x - centre)) + beta,   per row (or per group of group_width elements)
//
// v is the row's statistic: its mean square, its variance, or a value carried from an earlier site
// of the same layer (v = var_mul * carried + var_add: BHyT's second point, arXiv 2601.09719).
// s = gain                                              if stat is kNone (DyT: gain = alpha)
// s = gain / (sqrt(v + eps) + mean_coef * |mean|)       otherwise (mean_coef = 0: gain * rsqrt)
#pragma once

#include <cstdint>

namespace normserve::kernels {

enum class NormStat : int32_t { kNone = 0, kMeanSquare = 1, kVariance = 2, kCarried = 3 };
enum class NormPhi : int32_t { kIdentity = 0, kTanh = 1 };
enum class NormCentring : int32_t { kNone = 0, kSubtractMean = 1 };

// A norm without its tensors. The default is the identity without any statistic.
struct NormNumbers {
  NormStat stat = NormStat::kNone;
  NormPhi phi = NormPhi::kIdentity;
  NormCentring centring = NormCentring::kNone;
  float gain = 1.0f;
  float eps = 0.0f;
  float mean_coef = 0.0f;
  float var_mul = 1.0f;  // used by kCarried only
  float var_add = 0.0f;  // used by kCarried only
  int32_t group_width = 0;  // elements that share one statistic; 0 = the whole row
};

}  // namespace normserve::kernels
