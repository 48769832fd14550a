// SPDX-License-Identifier: Apache-2.0
// See row_softmax.h. Also the one place that names and limits the Highway target.
#include "kernels/row_softmax.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_softmax.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

RowMax MaxOfRowTarget(const float* row, size_t n) {
  const DF d;
  const float inf = std::numeric_limits<float>::infinity();
  VF best = hn::Set(d, -inf);
  // x - x is 0 for a finite x and NaN otherwise, and a sum never loses a NaN.
  VF odd = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::LoadU(d, row + i);
    best = hn::Max(best, v);
    odd = hn::Add(odd, hn::Sub(v, v));
  }
  RowMax result{hn::GetLane(hn::MaxOfLanes(d, best)), 0, true};
  float rest = hn::GetLane(hn::SumOfLanes(d, odd));
  for (; i < n; ++i) {
    if (row[i] > result.value) result.value = row[i];
    rest += row[i] - row[i];
  }
  result.finite = rest == 0.0f;
  if (!result.finite) {
    // Rare, so plain: the largest of the elements that are not NaN.
    result.value = -inf;
    for (i = 0; i < n; ++i) {
      if (row[i] > result.value) result.value = row[i];
    }
  }
  const VF target = hn::Set(d, result.value);
  i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (!hn::AllFalse(d, hn::Eq(hn::LoadU(d, row + i), target))) break;
  }
  for (; i < n; ++i) {
    if (row[i] == result.value) {
      result.index = static_cast<uint32_t>(i);
      break;
    }
  }
  return result;
}

void ExpRowTarget(const float* row, size_t n, float max, float* out) {
  const DF d;
  const VF shift = hn::Set(d, max);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(ExpVec(d, hn::Sub(hn::LoadU(d, row + i), shift)), d, out + i);
  }
  if (i < n) {
    const VF v = LoadPart(d, row + i, n - i);
    StorePart(d, ExpVec(d, hn::Sub(v, shift)), out + i, n - i);
  }
}

double LogSumExpTarget(const float* row, size_t n, float max) {
  const DF d;
  const VF shift = hn::Set(d, max);
  // Float lanes over pieces of 16 vectors, then one double per lane: the error of the float part is
  // that of 16 additions, whatever the vocabulary.
  double lanes[kLanes] = {};
  float piece_lanes[kLanes];
  size_t i = 0;
  while (i < n) {
    VF sum = hn::Zero(d);
    for (int k = 0; k < 16 && i < n; ++k) {
      if (n - i >= kLanes) {
        sum = hn::Add(sum, ExpVec(d, hn::Sub(hn::LoadU(d, row + i), shift)));
        i += kLanes;
      } else {
        const VF v = ExpVec(d, hn::Sub(LoadPart(d, row + i, n - i), shift));
        sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, n - i), v));
        i = n;
      }
    }
    hn::StoreU(sum, d, piece_lanes);
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += piece_lanes[l];
  }
  double total = 0.0;
  for (size_t l = 0; l < kLanes; ++l) total += lanes[l];
  return std::log(total) + static_cast<double>(max);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(MaxOfRowTarget);
HWY_EXPORT(ExpRowTarget);
HWY_EXPORT(LogSumExpTarget);

RowMax MaxOfRow(const float* row, size_t n) { return HWY_DYNAMIC_DISPATCH(MaxOfRowTarget)(row, n); }

double LogSumExp(const float* row, size_t n, float max) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpTarget)(row, n, max);
}

void ExpRow(const float* row, size_t n, float max, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpRowTarget)(row, n, max, out);
}

}  // namespace normserve::kernels
#endif
