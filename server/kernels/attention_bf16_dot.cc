// SPDX-License-Identifier: Apache-2.0
// Paged causal attention over a bfloat16 cache by AVX512-BF16, as linear_bf16_dot.cc multiplies: queries are rounded
// to bfloat16 for the scores, and the scores' weights for the values.
#include "kernels/attention_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_bf16_dot.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Also for what is included below: it is inlined always, or a template with DotCache among its arguments, so that no
// other file's code is replaced by it.
#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16"
#endif

#include "kernels/attention-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

struct DotCache {
  using Element = uint32_t;
  static constexpr bool kDot = true, kBytes = false;

  // sum[i] + a0 b[i]0 + a1 b[i]1
  static HWY_INLINE VF AddPairs(uint32_t a, const uint32_t* b, VF sum) {
    return VF{_mm512_dpbf16_ps(sum.raw, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(a)),
                               (__m512bh)_mm512_loadu_si512(b))};
  }
  static HWY_INLINE void StorePairs(VF v, uint32_t* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(v.raw));
  }
};

void DotAttention(const AttentionRows& args, int64_t begin, int64_t end) {
  if (args.type == RowType::kFloat32) return AttentionItems<DotCache, float>(args, begin, end);
  AttentionItems<DotCache, uint16_t>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace normserve::kernels {
void BFloat16DotAttention([[maybe_unused]] const AttentionRows& args, [[maybe_unused]] int64_t begin,
                          [[maybe_unused]] int64_t end) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::DotAttention(args, begin, end);
#endif
}
}  // namespace normserve::kernels
#endif
