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
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// Rows per tile.
constexpr int kMaxRows = kLanes >= 16 ? 12 : kLanes >= 8 ? 6 : kLanes >= 4 ? 2 : 1;

// Panels per call. With R rows and P panels a step keeps R * P accumulators, P weights and one input;
// latency wants at least 8 accumulators, bandwidth wants few streams.
constexpr int MaxPanels(int rows) {
  int panels = 8;
  // One row uses each weight once, so that weights need no registers of their own.
  const int live = rows == 1 ? 2 : rows + 1;
  const int budget = rows == 1 ? kRegisters : kRegisters - 2;
  while (panels > 1 && panels * kVectors * live > budget) panels /= 2;
  return panels;
}

// How far ahead of its use a weight is asked for. At few rows the weights come from memory; with up to 4
// panels at once the hardware alone does not run far enough ahead (measured: 4 KiB gives 8 rows 1.4x
// and 16 rows 1.3x), with 8 it does and asking only costs.
constexpr size_t kAheadBytes = 4096;

// y[r][n] for R rows and P panels of weights.
template <int R, int P, typename W>
HWY_INLINE void Tile(const LinearRows& a, const float* HWY_RESTRICT x, const W* HWY_RESTRICT w,
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
  const auto step = [&](size_t i) HWY_ATTR {
    VF weights[P][kVectors];
    for (int p = 0; p < P; ++p) {
      for (int v = 0; v < kVectors; ++v) {
        weights[p][v] = LoadVec(d, w + p * panel_elements + i * kPanel + v * kLanes);
      }
    }
    for (int r = 0; r < R; ++r) {
      const VF input = hn::Set(d, x[i * R + r]);
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) {
          acc[r][p][v] = hn::MulAdd(input, weights[p][v], acc[r][p][v]);
        }
      }
    }
  };
  constexpr size_t kPerLine = 64 / (kPanel * sizeof(W));  // steps per cache line of a panel
  size_t i = 0;
  for (; i + kPerLine <= k; i += kPerLine) {
    for (int p = 0; p < P && P <= 4; ++p) {
      hwy::Prefetch(w + p * panel_elements + i * kPanel + kAheadBytes / sizeof(W));
    }
    for (size_t j = 0; j < kPerLine; ++j) step(i + j);
  }
  for (; i < k; ++i) step(i);
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) StorePanel(a, acc[r][p], row + r, (panel + p) * kPanel);
  }
}

// All tiles of rows over one group of P panels, which stays in the second-level cache meanwhile.
template <int P, int R, typename W>
void TileOfHeight(const LinearRows& a, const float* x, const W* w, int64_t row, int64_t height,
                  int64_t panel) {
  if constexpr (R > kMaxRows || MaxPanels(R) < P) {
    return;  // never reached: TilesOf and PanelsAtOnce bound the height
  } else {
    if (height == R) return Tile<R, P>(a, x, w, row, panel);
    TileOfHeight<P, R + 1>(a, x, w, row, height, panel);
  }
}

template <int P, typename W>
void PanelGroup(const LinearRows& a, const float* packed, const RowTiles& tiles, int64_t panel) {
  const W* w = static_cast<const W*>(a.panels) + panel * a.k * kPanel;
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = tiles.first_row(t, a.rows);
    const int64_t height = tiles.first_row(t + 1, a.rows) - row;
    TileOfHeight<P, 1>(a, packed + row * a.k, w, row, height, panel);
  }
}

int64_t RowsAtOnceTarget() { return kMaxRows; }

int64_t PanelsAtOnceTarget(int64_t rows) {
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  return MaxPanels(static_cast<int>((rows + tiles - 1) / tiles));
}

template <typename W>
void LinearPanelsOf(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
  const RowTiles tiles = TilesOf(a.format, a.rows);
  int64_t at_once = PanelsAtOnceTarget(a.rows);
  for (int64_t panel = begin; panel < end; panel += at_once) {
    while (at_once > end - panel) at_once /= 2;
    if (at_once == 8) PanelGroup<8, W>(a, packed, tiles, panel);
    if (at_once == 4) PanelGroup<4, W>(a, packed, tiles, panel);
    if (at_once == 2) PanelGroup<2, W>(a, packed, tiles, panel);
    if (at_once == 1) PanelGroup<1, W>(a, packed, tiles, panel);
  }
}

void LinearPanelsTarget(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  if (args.format == WeightFormat::kFloat32) {
    return LinearPanelsOf<float>(args, packed, begin, end);
  }
  LinearPanelsOf<uint16_t>(args, packed, begin, end);
}

template <typename T>
void PackInputsOf(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  const DF d;
  const RowTiles tiles = TilesOf(a.format, a.rows);
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

RowTiles TilesOf(WeightFormat format, int64_t rows) {
  const int64_t max =
      IsQuantised(format) ? QuantisedRowsAtOnce() : HWY_DYNAMIC_DISPATCH(RowsAtOnceTarget)();
  return RowTiles{(rows + max - 1) / max};
}

int64_t PanelsAtOnce(int64_t rows) { return HWY_DYNAMIC_DISPATCH(PanelsAtOnceTarget)(rows); }

void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackInputsTarget)(args, begin, end, packed);
}

void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LinearPanelsTarget)(args, packed, begin, end);
}

}  // namespace normserve::kernels
#endif
