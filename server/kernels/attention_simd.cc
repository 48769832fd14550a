// SPDX-License-Identifier: Apache-2.0
// Paged causal attention on every Highway target.
#include "kernels/attention_rows.h"

#include "kernels/simd_target.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention_int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

void AttentionRowsTarget(const AttentionRows& args, int64_t begin, int64_t end) {
  if (args.int8_cache) return AttentionItems<Int8Cache, float>(args, begin, end);
  if (args.type != RowType::kFloat32) return AttentionItems<PairedCache, uint16_t>(args, begin, end);
  if (args.cache_type != RowType::kFloat32) return AttentionItems<PairedCache, float>(args, begin, end);
  AttentionItems<FloatCache, float>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {
HWY_EXPORT(AttentionRowsTarget);
void AttentionRowsCpu(const AttentionRows& args, int64_t begin, int64_t end) {
  if (args.int8_cache && HasVnni()) return VnniAttention(args, begin, end);
  if (args.cache_type != RowType::kFloat32 && HasBFloat16Dot()) return BFloat16DotAttention(args, begin, end);
  HWY_DYNAMIC_DISPATCH(AttentionRowsTarget)(args, begin, end);
}
}  // namespace normserve::kernels
#endif
