// SPDX-License-Identifier: Apache-2.0
// The scalar formulas of the norms, the same for both devices: what turns a row's statistic into the
// factor of its elements. Reductions and element loops are each device's own.
#pragma once

#include <cmath>

#include "kernels/norm_rows.h"

#if defined(__CUDACC__)
#define NORMSERVE_HOST_DEVICE __host__ __device__
#else
#define NORMSERVE_HOST_DEVICE
#endif

namespace normserve::kernels {

// The mean is needed to centre x, for a variance, and for BHyT*'s |mean| (arXiv 2601.09719).
NORMSERVE_HOST_DEVICE inline bool NeedsMean(const NormNumbers& norm) {
  return norm.stat == NormStat::kVariance || norm.centring == NormCentring::kSubtractMean ||
         norm.mean_coef != 0.0f;
}

// Whether the norm reduces its row to a statistic of its own (kCarried and kNone do not).
NORMSERVE_HOST_DEVICE inline bool MeasuresStat(const NormNumbers& norm) {
  return norm.stat == NormStat::kMeanSquare || norm.stat == NormStat::kVariance;
}

// s in y = gamma * phi(s * (x - centre)) + beta. `stat` is the measured or carried value.
//   RMSNorm, LayerNorm, LNS (2502.05795), Peri-LN (2502.02732), BHyT: gain / sqrt(v + eps)
//   BHyT's second point: v = var_mul * carried + var_add (2601.09719, its approximation of Var(y))
//   BHyT* as the paper writes it: gain / (sqrt(v + eps) + mean_coef * |mean|)
//   DyT (2503.10622): gain
NORMSERVE_HOST_DEVICE inline float NormScale(const NormNumbers& norm, float stat, float mean) {
  if (norm.stat == NormStat::kNone) return norm.gain;
  const float v = norm.stat == NormStat::kCarried ? norm.var_mul * stat + norm.var_add : stat;
  float spread = std::sqrt(v + norm.eps);
  // Not "+ 0 * |mean|": an infinite mean would make NaN of it.
  if (norm.mean_coef != 0.0f) spread += norm.mean_coef * std::fabs(mean);
  return norm.gain / spread;
}

}  // namespace normserve::kernels
