// SPDX-License-Identifier: Apache-2.0
// The float linear kernel over float16 weights, widened on load. A unit of its own, since units of tiles take long to
// compile. No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_f16_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/linear_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

void Float16PanelsTarget(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  RunFloatPanels<hwy::float16_t>(args, packed, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {
HWY_EXPORT(Float16PanelsTarget);
void Float16PanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Float16PanelsTarget)(args, packed, begin, end);
}
}  // namespace normserve::kernels
#endif
