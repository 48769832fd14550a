// SPDX-License-Identifier: Apache-2.0
// Paged causal attention over an int8 cache by AVX512-VNNI, whose instruction multiplies two 16-bit pairs of integers
// each of 16 sums and adds them to it: one instruction in the place of two, and the same bits.
#include "kernels/attention_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Also for what is included below: it is inlined always, or a template with VnniCache among its arguments, so that no
// other file's code is replaced by it.
#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni"
#endif

#include "kernels/attention_int8-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

struct VnniCache {
  using Element = uint16_t;
  static constexpr bool kDot = false, kBytes = true;
  static HWY_INLINE VI AddPairs(VS a, VS b, VI sum, VI& /*odd*/) {
    return VI{_mm512_dpwssd_epi32(sum.raw, a.raw, b.raw)};
  }
};

void VnniItems(const AttentionRows& args, int64_t begin, int64_t end) {
  AttentionItems<VnniCache, float>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace normserve::kernels {
void VnniAttention([[maybe_unused]] const AttentionRows& args, [[maybe_unused]] int64_t begin,
                   [[maybe_unused]] int64_t end) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::VnniItems(args, begin, end);
#endif
}
}  // namespace normserve::kernels
#endif
