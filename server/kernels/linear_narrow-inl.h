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
  static constexpr bool kAsks = false;  // for its own weights alone

  static constexpr size_t kInputs = Line<W>::kInputs;
  static constexpr int64_t PanelWeights(int64_t k) { return LinesOf<W>(k) * kPanel; }
  // 4 rows take 3 panels, whose 12 vectors are 4 strips of 3.
  static constexpr int MaxPanels(int rows) { return rows <= 4 ? 3 : 1; }
  // Vectors of outputs at once, of `panels`: up to 12 accumulators.
  static constexpr int StripVectors(int rows, int panels) {
    if (rows == 4 && panels == 3) return 3;
    return rows >= 4 ? 2 : 4;
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
    const size_t panel_weights = static_cast<size_t>(PanelWeights(static_cast<int64_t>(k)));
    const auto add = [&](const W* at, size_t line, size_t j) {
      const float* input = x + (line * kInputs + j) * R;
      const auto weights = [&](size_t v) {
        return Line<W>::Load(
            d, at + (First + v) / kPanelVectors * panel_weights + (First + v) % kPanelVectors * kWidth, j);
      };
      if constexpr (R * S + S + 1 > kRegisters) {  // then the inputs stay in registers, not the weights
        V inputs[R];
        for (size_t r = 0; r < R; ++r) inputs[r] = hn::Set(d, input[r]);
        for (size_t v = 0; v < S; ++v) {
          const V weight = weights(v);
          for (int r = 0; r < R; ++r) acc[r][v] = hn::MulAdd(inputs[r], weight, acc[r][v]);
        }
      } else {
        V weight[S];
        for (size_t v = 0; v < S; ++v) weight[v] = weights(v);
        for (size_t r = 0; r < R; ++r) {
          const V one = hn::Set(d, input[r]);
          for (int v = 0; v < S; ++v) acc[r][v] = hn::MulAdd(one, weight[v], acc[r][v]);
        }
      }
    };
    size_t line = 0;
    for (; (line + 1) * kInputs <= k; ++line) {
      const W* at = w + line * kPanel;
      hwy::Prefetch(at + kLast * panel_weights + kAhead);
      for (size_t j = 0; j < kInputs; ++j) add(at, line, j);
    }
    if (line * kInputs < k) add(w + line * kPanel, line, 0);
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
  static void Tile(const LinearRows& a, const float* x, const W* w, const Asked<W, P>& /*asked*/, int64_t row,
                   int64_t panel) {
    HWY_ALIGN float y[R][P][kPanel];
    Strips<R, P>(static_cast<size_t>(a.k), x, w, &y[0][0][0]);
    VF acc[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) acc[r][p][v] = hn::Load(DF(), &y[r][p][v * kLanes]);
      }
    }
    StoreTile<R, P>(a, acc, row, panel);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2
#endif  // include guard per target
