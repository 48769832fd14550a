// SPDX-License-Identifier: Apache-2.0
// What the linear kernels share, compiled once per Highway target: the shape of their register tiles and
// the store of a panel.
#if defined(NORMSERVE_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_LINEAR_INL_H_
#undef NORMSERVE_KERNELS_LINEAR_INL_H_
#else
#define NORMSERVE_KERNELS_LINEAR_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/linear_rows.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kVectors = static_cast<int>(kPanel / kLanes);  // per panel
inline constexpr int kRegisters = kLanes >= 16 ? 32 : 16;


// Adds the bias, rounds and stores 16 outputs of one row, fewer in the last panel.
HWY_INLINE void StorePanel(const LinearRows& a, const VF (&acc)[kVectors], int64_t row,
                           int64_t first) {
  const DF d;
  const size_t n = static_cast<size_t>(std::min(kPanel, a.n - first));
  for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
    if (v * kLanes >= n) return;
    const size_t lanes = std::min(kLanes, n - v * kLanes);
    const size_t at = static_cast<size_t>(first) + v * kLanes;
    VF sum = acc[v];
    if (a.bias != nullptr) {
      sum = hn::Add(sum, lanes == kLanes ? hn::LoadU(d, a.bias + at)
                                         : LoadPart(d, a.bias + at, lanes));
    }
    const size_t to = static_cast<size_t>(row * a.y_stride) + at;
    if (a.y_type == RowType::kFloat32) {
      float* y = static_cast<float*>(a.y) + to;
      lanes == kLanes ? StoreVec(d, sum, y) : StorePart(d, sum, y, lanes);
    } else {
      uint16_t* y = static_cast<uint16_t*>(a.y) + to;
      lanes == kLanes ? StoreVec(d, sum, y) : StorePart(d, sum, y, lanes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
