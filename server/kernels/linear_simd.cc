// SPDX-License-Identifier: Apache-2.0
// The linear kernel: register tiles of (rows) x (panels of 16 outputs). See linear_rows.h for the law
// that it keeps. bfloat16 weights are widened on load; the bf16 dot-product instruction is not used,
// since it would round the activations. No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/linear-inl.h"
#include "kernels/linear_narrow-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// How far ahead of its use a weight is asked for. At few rows the weights come from memory; with up to 4
// panels at once the hardware alone does not run far enough ahead (measured: 4 KiB gives 8 rows 1.4x
// and 16 rows 1.3x), with 8 it does and asking only costs.
constexpr size_t kAheadBytes = 4096;

// One input of R rows times its weights of P panels.
template <int R, int P, typename W>
HWY_INLINE void AddInput(const float* HWY_RESTRICT x, const W* HWY_RESTRICT w, size_t panel_elements,
                         VF (&acc)[R][P][kVectors]) {
  const DF d;
  VF weights[P][kVectors];
  for (size_t p = 0; p < P; ++p) {
    for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
      weights[p][v] = LoadVec(d, w + p * panel_elements + v * kLanes);
    }
  }
  for (int r = 0; r < R; ++r) {
    const VF input = hn::Set(d, x[r]);
    for (int p = 0; p < P; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        acc[r][p][v] = hn::MulAdd(input, weights[p][v], acc[r][p][v]);
      }
    }
  }
}

template <typename W>
struct FloatKernel {
  using Weight = W;
  static constexpr int64_t PanelWeights(int64_t k) { return k * kPanel; }

  // Panels per call. With R rows and P panels a step keeps R * P accumulators, P weights and one input;
  // latency wants at least 8 accumulators, bandwidth wants few streams.
  static constexpr int MaxPanels(int rows) {
    int panels = 8;
    // One row uses each weight once, so that weights need no registers of their own.
    const int live = rows == 1 ? 2 : rows + 1;
    const int budget = rows == 1 ? kRegisters : kRegisters - 2;
    while (panels > 1 && panels * kVectors * live > budget) panels /= 2;
    return panels;
  }

  template <int R, int P>
  static void Tile(const LinearRows& a, const float* HWY_RESTRICT x, const W* HWY_RESTRICT w,
                   int64_t row, int64_t panel) {
    const DF d;
    const size_t k = static_cast<size_t>(a.k);
    const size_t panel_elements = k * kPanel;
    VF acc[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) acc[r][p][v] = hn::Zero(d);
      }
    }
    constexpr size_t kPerLine = 64 / (kPanel * sizeof(W));  // inputs per cache line of a panel
    size_t i = 0;
    for (; i + kPerLine <= k; i += kPerLine) {
      for (size_t p = 0; p < P && P <= 4; ++p) {
        hwy::Prefetch(w + p * panel_elements + i * kPanel + kAheadBytes / sizeof(W));
      }
      for (size_t j = i; j < i + kPerLine; ++j) {
        AddInput<R, P>(x + j * R, w + j * kPanel, panel_elements, acc);
      }
    }
    for (; i < k; ++i) AddInput<R, P>(x + i * R, w + i * kPanel, panel_elements, acc);
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) StorePanel(a, acc[r][p], row + r, (panel + p) * kPanel);
    }
  }
};

int64_t RowsAtOnceTarget() { return kMaxRows; }

int64_t PanelsAtOnceTarget(int64_t rows, bool narrow) {
#if HWY_TARGET == HWY_AVX2
  if (narrow && rows > 1) return PanelsPerCall<NarrowKernel<float>>(rows);
#endif
  return PanelsPerCall<FloatKernel<float>>(rows);
}

template <typename W>
void RunFloatPanels(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
#if HWY_TARGET == HWY_AVX2
  if (a.narrow && a.rows > 1) return RunPanels<NarrowKernel<W>>(a, packed, begin, end);
#endif
  RunPanels<FloatKernel<W>>(a, packed, begin, end);
}

void LinearPanelsTarget(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  if (args.format == WeightFormat::kFloat32) {
    return RunFloatPanels<float>(args, packed, begin, end);
  }
  RunFloatPanels<uint16_t>(args, packed, begin, end);
}

template <typename T>
void PackInputsOf(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  const DF d;
  const RowTiles tiles = TilesOf(a.rows);
  const size_t k = static_cast<size_t>(a.k);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = tiles.first_row(t, a.rows);
    const size_t height = static_cast<size_t>(tiles.first_row(t + 1, a.rows) - first);
    float* to = packed + static_cast<size_t>(first) * k;
    for (size_t r = 0; r < height; ++r) {
      const T* from = static_cast<const T*>(a.x) + (first + static_cast<int64_t>(r)) * a.x_stride;
      size_t i = 0;
      if (height == 1) {
        for (; i + kLanes <= k; i += kLanes) hn::StoreU(LoadVec(d, from + i), d, to + i);
      }
      for (; i < k; ++i) to[i * height + r] = ToFloat(from[i]);
    }
  }
}

void PackInputsTarget(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  if (args.x_type == RowType::kFloat32) return PackInputsOf<float>(args, begin, end, packed);
  PackInputsOf<uint16_t>(args, begin, end, packed);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(RowsAtOnceTarget);
HWY_EXPORT(PanelsAtOnceTarget);
HWY_EXPORT(PackInputsTarget);
HWY_EXPORT(LinearPanelsTarget);

bool SplitsWideVectors() {
#if defined(__x86_64__)
  return __builtin_cpu_is("znver1") != 0;
#else
  return false;
#endif
}

RowTiles TilesOf(int64_t rows) {
  const int64_t max = HWY_DYNAMIC_DISPATCH(RowsAtOnceTarget)();
  return RowTiles{(rows + max - 1) / max};
}

int64_t PanelsAtOnce(int64_t rows, bool narrow) {
  return HWY_DYNAMIC_DISPATCH(PanelsAtOnceTarget)(rows, narrow);
}

void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackInputsTarget)(args, begin, end, packed);
}

void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LinearPanelsTarget)(args, packed, begin, end);
}

}  // namespace normserve::kernels
#endif
