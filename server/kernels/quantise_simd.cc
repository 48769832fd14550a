// SPDX-License-Identifier: Apache-2.0
// Rounds one panel of weights to 8 or 4 bits, 16 outputs beside each other in the lanes. Used at load
// only. Multiply and add are never fused here, so that a weight is the same on every SIMD target.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;

constexpr size_t kPanelSize = static_cast<size_t>(kPanel);
constexpr size_t kGroupSize = static_cast<size_t>(kGroup);

int64_t Index(size_t i) { return static_cast<int64_t>(i); }

// v rounded to bfloat16 and back: its bits are stored at `bits`.
HWY_INLINE VF RoundTo16(VF v, uint16_t* bits) {
  const DF d;
  StoreVec(d, v, bits);
  return LoadVec(d, bits);
}

// The least bfloat16 that is not below v >= 0, so that v / scale <= 127 stays true of the rounded scale.
HWY_INLINE VF RoundUpTo16(VF v, uint16_t* bits) {
  const DF d;
  const VF nearest = RoundTo16(v, bits);
  if (hn::AllTrue(d, hn::Ge(nearest, v))) return nearest;
  for (size_t i = 0; i < kLanes; ++i) {
    HWY_ALIGN float want[kLanes];
    hn::Store(v, d, want);
    if (ToFloat(bits[i]) < want[i]) ++bits[i];
  }
  return LoadVec(d, bits);
}

// 0 where every weight of the output is finite, else NaN.
HWY_INLINE VF Probe(const float* w) {
  const DF d;
  VF probe = hn::Zero(d);
  for (size_t i = 0; i < kGroupSize; ++i) {
    const VF v = hn::LoadU(d, w + i * kPanelSize);
    probe = hn::Add(probe, hn::Sub(v, v));
  }
  return probe;
}

// 1 / scale; 0 where that would overflow, which makes the weights 0.
HWY_INLINE VF Inverse(VF scale) {
  const DF d;
  const auto usable = hn::Gt(scale, hn::Set(d, 1e-37f));
  return hn::IfThenElseZero(usable, hn::Div(hn::Set(d, 1.0f), hn::IfThenElse(usable, scale, hn::Set(d, 1.0f))));
}

// One group of kLanes outputs from `first` on; w points at their first input.
void QuantiseGroup(const float* w, size_t first, Int8Group& out) {
  const DF d;
  VF largest = hn::Zero(d);
  const VF probe = Probe(w);
  for (size_t i = 0; i < kGroupSize; ++i) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, w + i * kPanelSize)));
  }
  const VF ideal = hn::Div(largest, hn::Set(d, 127.0f));
  const VF scale = RoundUpTo16(hn::IfThenElseZero(hn::Eq(probe, hn::Zero(d)), ideal), out.scale + first);
  const VF inverse = Inverse(scale);
  for (size_t i = 0; i < kGroupSize; ++i) {
    HWY_ALIGN int32_t q[kLanes];
    const VF exact = hn::Mul(hn::LoadU(d, w + i * kPanelSize), inverse);
    const VF in_range = hn::Min(hn::Max(exact, hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
    hn::Store(hn::NearestInt(in_range), DI(), q);
    for (size_t lane = 0; lane < kLanes; ++lane) out.Set(Index(first + lane), Index(i), q[lane]);
  }
  RoundTo16(hn::Add(scale, probe), out.scale + first);
}

// A candidate for a 4-bit group: w = scale * q + least, both bfloat16.
struct Affine {
  VF scale, least;
};

HWY_INLINE Affine Rounded(VF scale, VF least) {
  HWY_ALIGN uint16_t bits[kLanes];
  const VF s = RoundTo16(scale, bits);
  return {s, RoundTo16(least, bits)};
}

HWY_INLINE VF Level(VF w, const Affine& a, VF inverse) {
  const DF d;
  const VF exact = hn::Round(hn::Mul(hn::Sub(w, a.least), inverse));
  return hn::Min(hn::Max(exact, hn::Zero(d)), hn::Set(d, 15.0f));
}

HWY_INLINE VF SquaredError(const float* w, const Affine& a) {
  const DF d;
  const VF inverse = Inverse(a.scale);
  VF error = hn::Zero(d);
  for (size_t i = 0; i < kGroupSize; ++i) {
    const VF v = hn::LoadU(d, w + i * kPanelSize);
    const VF off = hn::Sub(hn::Add(hn::Mul(Level(v, a, inverse), a.scale), a.least), v);
    error = hn::Add(error, hn::Mul(off, off));
  }
  return error;
}

// The least-squares scale and least value for the levels that `a` gives.
HWY_INLINE Affine Refit(const float* w, const Affine& a) {
  const DF d;
  const VF inverse = Inverse(a.scale);
  VF q1 = hn::Zero(d), q2 = hn::Zero(d), x1 = hn::Zero(d), qx = hn::Zero(d);
  for (size_t i = 0; i < kGroupSize; ++i) {
    const VF v = hn::LoadU(d, w + i * kPanelSize);
    const VF q = Level(v, a, inverse);
    q1 = hn::Add(q1, q);
    q2 = hn::Add(q2, hn::Mul(q, q));
    x1 = hn::Add(x1, v);
    qx = hn::Add(qx, hn::Mul(q, v));
  }
  const VF count = hn::Set(d, static_cast<float>(kGroupSize));
  const VF spread = hn::Sub(hn::Mul(count, q2), hn::Mul(q1, q1));
  const VF slope = hn::Sub(hn::Mul(count, qx), hn::Mul(q1, x1));
  const auto usable = hn::And(hn::Gt(spread, hn::Zero(d)), hn::Gt(slope, hn::Zero(d)));
  const VF scale = hn::Div(slope, hn::IfThenElse(usable, spread, hn::Set(d, 1.0f)));
  const VF least = hn::Div(hn::Sub(x1, hn::Mul(scale, q1)), count);
  const Affine refitted = Rounded(scale, least);
  return {hn::IfThenElse(usable, refitted.scale, a.scale),
          hn::IfThenElse(usable, refitted.least, a.least)};
}

void QuantiseGroup(const float* w, size_t first, Int4Group& out) {
  const DF d;
  VF low = hn::LoadU(d, w), high = low;
  const VF probe = Probe(w);
  for (size_t i = 1; i < kGroupSize; ++i) {
    const VF v = hn::LoadU(d, w + i * kPanelSize);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
  }
  Affine best = Rounded(hn::Div(hn::Sub(high, low), hn::Set(d, 15.0f)), low);
  VF least_error = SquaredError(w, best);
  const VF middle = hn::Mul(hn::Add(low, high), hn::Set(d, 0.5f));
  for (const float shrink : {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.7f}) {
    const VF factor = hn::Set(d, shrink);
    const VF from = hn::Add(middle, hn::Mul(hn::Sub(low, middle), factor));
    const VF to = hn::Add(middle, hn::Mul(hn::Sub(high, middle), factor));
    const Affine start = Rounded(hn::Div(hn::Sub(to, from), hn::Set(d, 15.0f)), from);
    const Affine candidate = Refit(w, start);
    const VF error = SquaredError(w, candidate);
    const auto better = hn::Lt(error, least_error);
    least_error = hn::IfThenElse(better, error, least_error);
    best.scale = hn::IfThenElse(better, candidate.scale, best.scale);
    best.least = hn::IfThenElse(better, candidate.least, best.least);
  }
  const VF inverse = Inverse(best.scale);
  for (size_t i = 0; i < kGroupSize; ++i) {
    HWY_ALIGN int32_t q[kLanes];
    const VF level = Level(hn::LoadU(d, w + i * kPanelSize), best, inverse);
    hn::Store(hn::NearestInt(hn::IfThenElseZero(hn::Eq(probe, hn::Zero(d)), level)), DI(), q);
    for (size_t lane = 0; lane < kLanes; ++lane) out.Set(Index(first + lane), Index(i), q[lane]);
  }
  RoundTo16(hn::Add(best.scale, probe), out.scale + first);
  RoundTo16(best.least, out.least + first);
}

template <class Group>
void QuantisePanelOf(const float* weights, int64_t groups, Group* panel) {
  for (int64_t g = 0; g < groups; ++g) {
    panel[g] = Group{};
    for (size_t first = 0; first < kPanelSize; first += kLanes) {
      QuantiseGroup(weights + g * kGroup * kPanel + first, first, panel[g]);
    }
  }
}

void QuantiseTo8Target(const float* weights, int64_t groups, Int8Group* panel) {
  QuantisePanelOf(weights, groups, panel);
}
void QuantiseTo4Target(const float* weights, int64_t groups, Int4Group* panel) {
  QuantisePanelOf(weights, groups, panel);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(QuantiseTo8Target);
HWY_EXPORT(QuantiseTo4Target);

void QuantisePanelCpu(const float* weights, int64_t groups, Int8Group* panel) {
  HWY_DYNAMIC_DISPATCH(QuantiseTo8Target)(weights, groups, panel);
}

void QuantisePanelCpu(const float* weights, int64_t groups, Int4Group* panel) {
  HWY_DYNAMIC_DISPATCH(QuantiseTo4Target)(weights, groups, panel);
}

}  // namespace normserve::kernels
#endif
