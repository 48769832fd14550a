// SPDX-License-Identifier: Apache-2.0
// The float linear kernel over weights of any type that it can widen (Line<W>), compiled once per Highway target.
#if defined(NORMSERVE_KERNELS_LINEAR_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_LINEAR_FLOAT_INL_H_
#undef NORMSERVE_KERNELS_LINEAR_FLOAT_INL_H_
#else
#define NORMSERVE_KERNELS_LINEAR_FLOAT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear-inl.h"
#include "kernels/linear_narrow-inl.h"
#include "kernels/linear_rows.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// Weights of one input of each row: a vector per 16 outputs' part.
template <int P>
using InputWeights = VF[P][kVectors];

template <int R, int P>
HWY_INLINE void AddInput(const float* HWY_RESTRICT x, const InputWeights<P>& weights, VF (&acc)[R][P][kVectors]) {
  const DF d;
  for (int r = 0; r < R; ++r) {
    const VF input = hn::Set(d, x[r]);
    for (int p = 0; p < P; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        acc[r][p][v] = hn::MulAdd(input, weights[p][v], acc[r][p][v]);
      }
    }
  }
}

// Inputs [0, kCount) of a line.
template <int R, int P, typename W, size_t kCount = Line<W>::kInputs>
HWY_INLINE void AddLine(const float* HWY_RESTRICT x, const W* HWY_RESTRICT w, size_t panel_weights,
                        VF (&acc)[R][P][kVectors]) {
  const DF d;
  for (size_t j = 0; j < kCount; ++j) {
    InputWeights<P> weights;
    for (size_t p = 0; p < P; ++p) {
      for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
        weights[p][v] = Line<W>::Load(d, w + p * panel_weights + v * kLanes, j);
      }
    }
    AddInput<R, P>(x + j * R, weights, acc);
  }
}

template <typename W>
struct FloatKernel {
  using Weight = W;
  static constexpr size_t kInputs = Line<W>::kInputs;
  static constexpr int64_t PanelWeights(int64_t k) { return LinesOf<W>(k) * kPanel; }

  static constexpr int MaxPanels(int rows) { return PanelsInRegisters(rows); }
  static constexpr size_t kAhead = kFloatAheadBytes / sizeof(W);
  static constexpr bool kAsks = true;

  template <int R, int P>
  static void Tile(const LinearRows& a, const float* HWY_RESTRICT x, const W* HWY_RESTRICT w,
                   const Asked<W, P>& asked, int64_t row, int64_t panel) {
    const DF d;
    const size_t k = static_cast<size_t>(a.k);
    const size_t panel_weights = static_cast<size_t>(PanelWeights(a.k));
    VF acc[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) acc[r][p][v] = hn::Zero(d);
      }
    }
    size_t line = 0;
    for (; (line + 1) * kInputs <= k; ++line) {
      for (int p = 0; p < P && P <= 4; ++p) AskSecondLevel(asked[p] + line * kPanel);
      AddLine<R, P>(x + line * kInputs * R, w + line * kPanel, panel_weights, acc);
    }
    if (line * kInputs < k) {
      AddLine<R, P, W, 1>(x + line * kInputs * R, w + line * kPanel, panel_weights, acc);
    }
    StoreTile<R, P>(a, acc, row, panel);
  }
};

template <typename W>
void RunFloatPanels(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
#if HWY_TARGET == HWY_AVX2
  if (a.narrow && a.rows > 1) return RunPanels<NarrowKernel<W>>(a, packed, begin, end);
#endif
  RunPanels<FloatKernel<W>>(a, packed, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
