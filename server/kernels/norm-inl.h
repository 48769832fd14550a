// SPDX-License-Identifier: Apache-2.0
// One norm over one group of elements: its statistic, and the element-wise part that the other fused
// kernels call with their own loads and stores. Compiled once per Highway target.
#if defined(NORMSERVE_KERNELS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_NORM_INL_H_
#undef NORMSERVE_KERNELS_NORM_INL_H_
#else
#define NORMSERVE_KERNELS_NORM_INL_H_
#endif

#include <algorithm>

#include "kernels/norm_math.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// Sum of f(x) over a group. Lanes add up in float32 over 512 elements, the pieces in double: a
// fixed order, and an error that does not grow with the width.
template <typename T, class F>
HWY_INLINE double SumOverRow(const T* x, size_t n, const F& f) {
  const DF d;
  constexpr size_t kPiece = 512;
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += kPiece) {
    const size_t end = std::min(n, begin + kPiece);
    VF sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    size_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      sum0 = f(LoadVec(d, x + i), sum0);
      sum1 = f(LoadVec(d, x + i + kLanes), sum1);
      sum2 = f(LoadVec(d, x + i + 2 * kLanes), sum2);
      sum3 = f(LoadVec(d, x + i + 3 * kLanes), sum3);
    }
    for (; i + kLanes <= end; i += kLanes) sum0 = f(LoadVec(d, x + i), sum0);
    if (i < end) {
      const VF part = f(LoadPart(d, x + i, end - i), hn::Zero(d));
      sum1 = hn::Add(sum1, hn::IfThenElseZero(hn::FirstN(d, end - i), part));
    }
    const VF sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return total;
}

struct GroupScale {
  float stat = 0.0f;    // mean square, variance, or the carried value
  float scale = 1.0f;   // s
  float centre = 0.0f;  // what is subtracted from x
};

// The statistic of x[0..n) and what follows from it. A variance is taken in two passes. A square
// that overflows makes the statistic Inf and the scale 0, as in the plain float32 formula.
template <typename T>
HWY_INLINE GroupScale MeasureGroup(const T* x, size_t n, const NormNumbers& norm, float carried) {
  const DF d;
  GroupScale result;
  float mean = 0.0f;
  const double count = static_cast<double>(n);
  if (NeedsMean(norm)) {
    mean = static_cast<float>(
        SumOverRow(x, n, [&](VF v, VF sum) HWY_ATTR { return hn::Add(sum, v); }) / count);
  }
  if (norm.stat == NormStat::kMeanSquare) {
    const double sum = SumOverRow(x, n, [&](VF v, VF s) HWY_ATTR { return hn::MulAdd(v, v, s); });
    result.stat = static_cast<float>(sum / count);
  } else if (norm.stat == NormStat::kVariance) {
    const VF centre = hn::Set(d, mean);
    const double sum = SumOverRow(x, n, [&](VF v, VF s) HWY_ATTR {
      const VF c = hn::Sub(v, centre);
      return hn::MulAdd(c, c, s);
    });
    result.stat = static_cast<float>(sum / count);
  } else if (norm.stat == NormStat::kCarried) {
    result.stat = carried;
  }
  result.scale = NormScale(norm, result.stat, mean);
  if (norm.centring == NormCentring::kSubtractMean) result.centre = mean;
  return result;
}

// The element-wise part for one vector of x, gamma and beta at element `i` of the row.
template <NormPhi kPhi, bool kGamma, bool kBeta>
struct Element {
  VF scale, centre;
  const float* HWY_RESTRICT gamma;
  const float* HWY_RESTRICT beta;

  HWY_INLINE VF operator()(DF d, VF x, size_t i, size_t n) const {
    VF v = hn::Mul(scale, hn::Sub(x, centre));
    if (kPhi == NormPhi::kTanh) v = TanhVec(d, v);
    if (kGamma) v = hn::Mul(v, Parameter(d, gamma, i, n));
    if (kBeta) v = hn::Add(v, Parameter(d, beta, i, n));
    return v;
  }

 private:
  static HWY_INLINE VF Parameter(DF d, const float* p, size_t i, size_t n) {
    return n == kLanes ? hn::LoadU(d, p + i) : LoadPart(d, p + i, n);
  }
};

// Calls body(element) with the Element type that the norm needs: one branch per group, none per
// element. gamma and beta start at the group.
template <class Body>
HWY_INLINE void WithElement(const RowNorm& norm, const GroupScale& group, size_t offset,
                            const Body& body) {
  const DF d;
  const VF scale = hn::Set(d, group.scale), centre = hn::Set(d, group.centre);
  const float* gamma = norm.gamma ? norm.gamma + offset : nullptr;
  const float* beta = norm.beta ? norm.beta + offset : nullptr;
  const bool tanh = norm.numbers.phi == NormPhi::kTanh;
  constexpr NormPhi kId = NormPhi::kIdentity, kTanh = NormPhi::kTanh;
  if (tanh) {
    if (gamma && beta) return body(Element<kTanh, true, true>{scale, centre, gamma, beta});
    if (gamma) return body(Element<kTanh, true, false>{scale, centre, gamma, beta});
    if (beta) return body(Element<kTanh, false, true>{scale, centre, gamma, beta});
    return body(Element<kTanh, false, false>{scale, centre, gamma, beta});
  }
  if (gamma && beta) return body(Element<kId, true, true>{scale, centre, gamma, beta});
  if (gamma) return body(Element<kId, true, false>{scale, centre, gamma, beta});
  if (beta) return body(Element<kId, false, true>{scale, centre, gamma, beta});
  return body(Element<kId, false, false>{scale, centre, gamma, beta});
}

HWY_INLINE size_t GroupWidth(const NormNumbers& norm, size_t width) {
  return norm.group_width > 0 ? static_cast<size_t>(norm.group_width) : width;
}

// x widened to float32.
template <typename T>
HWY_NOINLINE void LoadElements(const T* x, size_t n, float* out) {
  const DF d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadVec(d, x + i), d, out + i);
  for (; i < n; ++i) out[i] = ToFloat(x[i]);
}

// N(x) in float32 of n elements that share one statistic; `offset` is their place in gamma and beta.
// Not inlined: the fused kernels would multiply its eight variants.
template <typename T>
HWY_NOINLINE void NormElements(const T* x, size_t n, const RowNorm& norm, const GroupScale& scale,
                  size_t offset, float* out) {
  WithElement(norm, scale, offset, [&](const auto& element) HWY_ATTR {
    const DF d;
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(element(d, LoadVec(d, x + i), i, kLanes), d, out + i);
    }
    if (i < n) StorePart(d, element(d, LoadPart(d, x + i, n - i), i, n - i), out + i, n - i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
