// SPDX-License-Identifier: Apache-2.0
// The float linear kernel for processors that split 256-bit instructions (LinearRows.narrow): vectors of
// 128 bits, for more than one row. The same chains of multiply-adds as FloatKernel, hence the same bits;
// what differs is the shape of the register tile, chosen so that 12 accumulators hide the latency.
#if defined(NORMSERVE_KERNELS_LINEAR_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_LINEAR_NARROW_INL_H_
#undef NORMSERVE_KERNELS_LINEAR_NARROW_INL_H_
#else
#define NORMSERVE_KERNELS_LINEAR_NARROW_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/linear-inl.h"
#include "kernels/linear_rows.h"
#include "kernels/simd-inl.h"

#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

template <typename W>
struct NarrowKernel {
  using Weight = W;
  using D = hn::CappedTag<float, 4>;
  using V = hn::Vec<D>;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = static_cast<int>(kPanel) / kWidth;
  static constexpr size_t kAhead = 4096 / sizeof(W);

  static constexpr int64_t PanelWeights(int64_t k) { return k * kPanel; }
  // 4 rows take 3 panels, whose 12 vectors are 4 strips of 3.
  static constexpr int MaxPanels(int rows) { return rows <= 4 ? 3 : 1; }
  // Vectors of outputs at once, of `panels`: up to 12 accumulators.
  static constexpr int StripVectors(int rows, int panels) {
    if (rows == 4 && panels == 3) return 3;
    return rows >= 4 ? 2 : 4;
  }

  static HWY_INLINE V Load(const float* from) { return hn::LoadU(D(), from); }
  static HWY_INLINE V Load(const uint16_t* from) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
  }

  // S vectors of outputs, from vector First of the panels at w, for R rows, to y.
  template <int R, int S, int First>
  static HWY_INLINE void Strip(size_t k, const float* HWY_RESTRICT x, const W* HWY_RESTRICT w,
                               float* HWY_RESTRICT y, size_t y_stride) {
    const D d;
    constexpr int kLast = (First + S - 1) / kPanelVectors;
    V acc[R][S];
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < S; ++v) acc[r][v] = hn::Zero(d);
    }
    for (size_t i = 0; i < k; ++i) {
      const W* at = w + i * kPanel;
      hwy::Prefetch(at + kLast * k * kPanel + kAhead);  // twice a line: a branch costs more
      const auto weights = [&](size_t v) {
        return Load(at + (First + v) / kPanelVectors * k * kPanel + (First + v) % kPanelVectors * kWidth);
      };
      if constexpr (R * S + S + 1 > kRegisters) {  // then the inputs stay in registers, not the weights
        V inputs[R];
        for (size_t r = 0; r < R; ++r) inputs[r] = hn::Set(d, x[i * R + r]);
        for (size_t v = 0; v < S; ++v) {
          const V weight = weights(v);
          for (int r = 0; r < R; ++r) acc[r][v] = hn::MulAdd(inputs[r], weight, acc[r][v]);
        }
      } else {
        V weight[S];
        for (size_t v = 0; v < S; ++v) weight[v] = weights(v);
        for (size_t r = 0; r < R; ++r) {
          const V input = hn::Set(d, x[i * R + r]);
          for (int v = 0; v < S; ++v) acc[r][v] = hn::MulAdd(input, weight[v], acc[r][v]);
        }
      }
    }
    for (size_t r = 0; r < R; ++r) {
      for (size_t v = 0; v < S; ++v) {
        hn::StoreU(acc[r][v], d, y + r * y_stride + (First + v) * kWidth);
      }
    }
  }

  template <int R, int P, int First = 0>
  static HWY_INLINE void Strips(size_t k, const float* x, const W* w, float* y) {
    if constexpr (First < P * kPanelVectors) {
      constexpr int kStrip = StripVectors(R, P);
      Strip<R, kStrip, First>(k, x, w, y, P * kPanel);
      Strips<R, P, First + kStrip>(k, x, w, y);
    }
  }

  template <int R, int P>
  static void Tile(const LinearRows& a, const float* x, const W* w, int64_t row, int64_t panel) {
    HWY_ALIGN float y[R][P][kPanel];
    Strips<R, P>(static_cast<size_t>(a.k), x, w, &y[0][0][0]);
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        VF sums[kVectors];
        for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
          sums[v] = hn::Load(DF(), &y[r][p][v * kLanes]);
        }
        StorePanel(a, sums, row + r, (panel + p) * kPanel);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2
#endif  // include guard per target
