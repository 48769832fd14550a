// SPDX-License-Identifier: Apache-2.0
// Integers in the place of floats: rounding to them by one scale, and products of 16-bit ones, two neighbours at a
// time, summed exactly in 32 bits, by what each Highway target has for it. No torch, no threads.
#if defined(NORMSERVE_KERNELS_INTEGERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_INTEGERS_INL_H_
#undef NORMSERVE_KERNELS_INTEGERS_INL_H_
#else
#define NORMSERVE_KERNELS_INTEGERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <limits>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;  // sums
using VI = hn::Vec<DI>;

// x = scale * q for whole numbers q. zeros: every q is 0.
struct Rounding {
  float scale, inverse;
  bool zeros;
};

// Magnitudes compare as their bits do, and those of Inf and NaN are above all others.
HWY_INLINE VI MagnitudeBits(VF v) { return hn::BitCast(DI(), hn::Abs(v)); }

// The bits of the largest magnitude. n is a multiple of kLanes.
HWY_INLINE int32_t LargestBits(const float* x, size_t n) {
  const DF d;
  VI largest = hn::Zero(DI());
  for (size_t i = 0; i < n; i += kLanes) largest = hn::Max(largest, MagnitudeBits(hn::LoadU(d, x + i)));
  return hn::GetLane(hn::MaxOfLanes(DI(), largest));
}

// So that the largest becomes `most`. With a NaN or Inf scale is NaN and q 0, with nothing from `least` on all are 0.
HWY_INLINE Rounding RoundingOf(int32_t largest_bits, float most, float least) {
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  if (largest_bits >= 0x7F800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0f, true};
  if (largest < least) return {0.0f, 0.0f, true};
  return {largest / most, most / largest, false};
}

// q of n numbers, a multiple of kLanes; Q is an integer type that has room for them.
template <typename Q>
HWY_INLINE void RoundAll(const float* x, size_t n, const Rounding& by, Q* q) {
  const DF d;
  const hn::Rebind<Q, DF> dq;
  const VF inverse = hn::Set(d, by.inverse);
  for (size_t i = 0; i < n; i += kLanes) {
    const VF v = by.zeros ? hn::Zero(d) : hn::LoadU(d, x + i);
    hn::StoreU(hn::DemoteTo(dq, hn::NearestInt(hn::Mul(v, inverse))), dq, q + i);
  }
}

#if HWY_TARGET == HWY_SCALAR

struct VS {  // one pair
  int32_t first, second;
};

HWY_INLINE VS SetPair(const int16_t* q) { return {q[0], q[1]}; }
HWY_INLINE VS WidenPairs(const int8_t* q) { return {q[0], q[1]}; }
HWY_INLINE VI MulPairsAdd(VS a, VS b, VI sum, VI&) {
  return hn::Set(DI(), hn::GetLane(sum) + a.first * b.first + a.second * b.second);
}
HWY_INLINE VI WholeSum(VI sum, VI) { return sum; }

#else

using DS = hn::Repartition<int16_t, DI>;
using VS = hn::Vec<DS>;  // kLanes pairs

// One pair in every place.
HWY_INLINE VS SetPair(const int16_t* q) {
  int32_t both;
  std::memcpy(&both, q, sizeof(both));
  return hn::BitCast(DS(), hn::Set(DI(), both));
}

// kLanes pairs of bytes.
HWY_INLINE VS WidenPairs(const int8_t* q) {
  const hn::Rebind<int8_t, DS> d8;
  return hn::PromoteTo(DS(), hn::LoadU(d8, q));
}

// sum[i] + a[2i] b[2i] + a[2i+1] b[2i+1]. `odd` takes a part of the sum where a target has no such
// instruction; it stays 0, and costs nothing, on x86.
HWY_INLINE VI MulPairsAdd(VS a, VS b, VI sum, VI& odd) {
  sum = hn::ReorderWidenMulAccumulate(DI(), a, b, sum, odd);
#if HWY_ARCH_X86
  // Keeps each sum in its register: GCC adds integers in an order of its own, with all products alive at
  // once, and spills most of them (measured: half the speed).
  asm("" : "+v"(sum.raw));
#endif
  return sum;
}
HWY_INLINE VI WholeSum(VI sum, VI odd) { return hn::RearrangeToOddPlusEven(sum, odd); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
