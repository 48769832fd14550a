// SPDX-License-Identifier: Apache-2.0
// Loads, stores and elementary functions of the row kernels, compiled once per Highway target.
// Rules of all code above this header: float32 arithmetic only, no contraction but an explicit
// MulAdd, and the value of an element never depends on its place in a vector or in a row. Nothing
// here reads or writes past `n`.
#if defined(NORMSERVE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_SIMD_INL_H_
#undef NORMSERVE_KERNELS_SIMD_INL_H_
#else
#define NORMSERVE_KERNELS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// For lambdas in code that is compiled under several sets of instructions of one name (linear_bf16_dot.cc): as a function
// of its own, one's would stand for all.
#undef NORMSERVE_INLINED
#define NORMSERVE_INLINED __attribute__((always_inline))

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
inline constexpr size_t kLanes = hn::MaxLanes(DF());

// Asks memory for a line that is read thousands of bytes later: into the second-level cache, since in the first it would
// take the room of what is in use (bfloat16 dot products at 8 rows: 1.2x).
HWY_INLINE void AskSecondLevel(const void* line) { __builtin_prefetch(line, 0, 2); }

// bfloat16 is held as uint16_t, so that rounding is ours whatever Highway's version does.
HWY_INLINE VF LoadVec(DF d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF LoadVec(DF d, const uint16_t* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> dh;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, p))));
}

HWY_INLINE void StoreVec(DF d, VF v, float* p) { hn::StoreU(v, d, p); }
// Round to nearest even; NaN stays a (quiet) NaN.
HWY_INLINE void StoreVec(DF d, VF v, uint16_t* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint16_t, DF> dh;
  const auto bits = hn::BitCast(du, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1u));
  const auto rounded =
      hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto out = hn::IfThenElse(nan, quiet, rounded);
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, out)), dh, p);
}

// The first n < kLanes elements; the other lanes are 0.
template <typename T>
HWY_INLINE VF LoadPart(DF d, const T* p, size_t n) {
  T part[kLanes];
  for (size_t i = 0; i < kLanes; ++i) part[i] = i < n ? p[i] : T{};
  return LoadVec(d, part);
}
template <typename T>
HWY_INLINE void StorePart(DF d, VF v, T* p, size_t n) {
  T part[kLanes];
  StoreVec(d, v, part);
  for (size_t i = 0; i < kLanes && i < n; ++i) p[i] = part[i];
}

HWY_INLINE float ToFloat(float v) { return v; }
HWY_INLINE float ToFloat(uint16_t v) {
  const uint32_t bits = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

// What lies together for 16 outputs or positions: one float32 or float16 input of each, or two bfloat16 inputs in
// a word, the earlier one in the low half. Load(d, w, j): input j, from the output that w points at. Of bytes (two in
// half a word) there is no such Load.
template <typename W>
struct Line;

template <>
struct Line<float> {
  static constexpr size_t kInputs = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* w, size_t /*input*/) {
    return hn::LoadU(d, w);
  }
};

template <>
struct Line<hwy::float16_t> {
  static constexpr size_t kInputs = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const hwy::float16_t* w, size_t /*input*/) {
    const auto v = hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), w));
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
    // Without an instruction Highway takes Inf and NaN for numbers from 65536 on, which float16 has none of.
    const auto infinite = hn::Or(v, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7F800000u)));
    return hn::IfThenElse(hn::Ge(hn::Abs(v), hn::Set(d, 65536.0f)), infinite, v);
#else
    return v;
#endif
  }
};

template <>
struct Line<uint32_t> {
  static constexpr size_t kInputs = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint32_t* w, size_t input) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::LoadU(du, w);
    // Not by a mask, which takes a register: one sum of a tile's, on AVX2, would lie in memory.
    return hn::BitCast(d, hn::ShiftLeft<16>(input == 0 ? both : hn::ShiftRight<16>(both)));
  }
};

template <>
struct Line<uint16_t> {
  static constexpr size_t kInputs = 2;
};

// e^(x - n ln2) for n the nearest integer to x / ln2: Taylor's polynomial of degree 7 in a remainder
// of at most ln2 / 2.
HWY_INLINE VF ExpReduced(DF d, VF x, VF n) {
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440054690583e-4f), r);
  VF p = hn::Set(d, 1.0f / 5040.0f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return p;
}

// exp(x), about 1 ulp over the whole range, subnormal results included; exp(NaN) = NaN.
// 2^n goes in as two factors, so that neither overflows before the result does.
HWY_INLINE VF ExpVec(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF clamped = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const VF safe = hn::IfThenElse(hn::IsNaN(x), hn::Zero(d), clamped);
  const VF n = hn::Round(hn::Mul(safe, hn::Set(d, 1.44269504088896341f)));
  const VF p = ExpReduced(d, safe, n);
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const VF f0 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const VF f1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  const VF e = hn::Mul(hn::Mul(p, f0), f1);
  return hn::IfThenElse(hn::IsNaN(x), x, e);
}

// tanh(x): odd, within 2e-7 (absolutely and relatively), tanh(x) = x for tiny and subnormal x, +-1 far out, NaN for
// NaN. One formula for all x: t / (t + 2) for t = e^2|x| - 1, which is 2^n p + (2^n - 1) for p = e^2r - 1 and
// |x| = n ln2 / 2 + r. Nothing cancels: near zero n is 0 and t is p itself.
HWY_INLINE VF TanhVec(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF two = hn::Set(d, 2.0f);
  // From 9.02 on the result is 1. Not a minimum: a NaN stays.
  const VF most = hn::Set(d, 9.5f), size = hn::Abs(x);
  const VF a = hn::IfThenElse(hn::Gt(size, most), most, size);
  // So large that its last bit counts ones: the sum is rounded to n plus the exponent's bias.
  const VF bias = hn::Set(d, 12582912.0f + 127.0f);
  const VF biased = hn::MulAdd(a, hn::Set(d, 2.88539008177792682f), bias);
  const VF n = hn::Sub(biased, bias);
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, biased)));
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.3466796875f), a);
  r = hn::NegMulAdd(n, hn::Set(d, -1.06097220027345292e-4f), r);
  // p = 2r + r^2 Q(r): Q a minimax fit on |r| <= ln2 / 4 (fit error 1.4e-8 of p).
  VF q = hn::Set(d, 8.884733315e-02f);
  q = hn::MulAdd(q, r, hn::Set(d, 2.677497879e-01f));
  q = hn::MulAdd(q, r, hn::Set(d, 6.666755403e-01f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.333323095e+00f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.999999922e+00f));
  const VF p = hn::MulAdd(hn::Mul(r, r), q, hn::Add(r, r));
  const VF t = hn::MulAdd(p, power, hn::Sub(power, hn::Set(d, 1.0f)));
  return hn::CopySign(hn::Div(t, hn::Add(t, two)), x);
}

// exp(x) within 2 ulp where the result is a normal number, in half the operations of ExpVec: below -87.3 it is 1.2e-38,
// above 88.37 Inf; exp(NaN) = NaN. For sums to which so little adds nothing.
HWY_INLINE VF FastExpVec(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  // Not a maximum and a minimum: a NaN stays.
  const VF least = hn::Set(d, -87.3f), most = hn::Set(d, 88.7f);
  const VF above = hn::IfThenElse(hn::Lt(x, least), least, x);
  const VF safe = hn::IfThenElse(hn::Gt(above, most), most, above);
  // So large that its last bit counts ones: the sum is rounded to n plus the exponent's bias.
  const VF bias = hn::Set(d, 12582912.0f + 127.0f);
  const VF biased = hn::MulAdd(safe, hn::Set(d, 1.44269504088896341f), bias);
  const VF n = hn::Sub(biased, bias);
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, biased)));
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), safe);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // A minimax fit of e^r on |r| <= ln2 / 2 (fit error 3e-9).
  VF p = hn::Set(d, 1.381432059e-03f);
  p = hn::MulAdd(p, r, hn::Set(d, 8.368851094e-03f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.166840109e-02f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.666651952e-01f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.999999337e-01f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::Mul(p, power);
}

// silu(x) = x / (1 + e^-x).
HWY_INLINE VF SiluVec(DF d, VF x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), FastExpVec(d, hn::Neg(x))));
}

// Exact GELU, x Phi(x), within 3e-7 or half an ulp. Phi(-a) = e^(-t^2) g(t) / (2 + 4t) with
// t = a / sqrt(2) and g(t) = e^(t^2) erfc(t) (1 + 2t), a polynomial in (t - 2) / (t + 2) (our fit on
// [0, 10], error 2e-8); the positive side is x - x Phi(-x), so that neither tail cancels.
HWY_INLINE VF GeluVec(DF d, VF x) {
  const VF two = hn::Set(d, 2.0f);
  const VF a = hn::Abs(x);
  const VF t = hn::Min(hn::Mul(a, hn::Set(d, 0.707106781186547524f)), hn::Set(d, 10.5f));
  const VF u = hn::Div(hn::Sub(t, two), hn::Add(t, two));
  VF g = hn::Set(d, -4.017228202e-04f);
  g = hn::MulAdd(g, u, hn::Set(d, -1.231886679e-03f));
  g = hn::MulAdd(g, u, hn::Set(d, 1.313729561e-03f));
  g = hn::MulAdd(g, u, hn::Set(d, 8.633280173e-03f));
  g = hn::MulAdd(g, u, hn::Set(d, -8.059601299e-03f));
  g = hn::MulAdd(g, u, hn::Set(d, -5.420471355e-02f));
  g = hn::MulAdd(g, u, hn::Set(d, 1.640552729e-01f));
  g = hn::MulAdd(g, u, hn::Set(d, -1.660313904e-01f));
  g = hn::MulAdd(g, u, hn::Set(d, -9.276397526e-02f));
  g = hn::MulAdd(g, u, hn::Set(d, 1.276978374e+00f));
  const VF tail = hn::Div(hn::Mul(ExpVec(d, hn::Neg(hn::Mul(t, t))), g),
                          hn::MulAdd(t, hn::Set(d, 4.0f), two));
  // -Inf * 0 is NaN and +Inf stays, as in the plain formula: hence the bound on one side only.
  const VF positive = hn::Sub(x, hn::Mul(hn::Min(a, hn::Set(d, 16.0f)), tail));
  const VF y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(x, tail), positive);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
