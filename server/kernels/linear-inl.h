// SPDX-License-Identifier: Apache-2.0
// What the linear kernels share, compiled once per Highway target: the shape of their register tiles, the
// walk over tiles and panels, and the store of a panel.
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

// Rows per tile.
inline constexpr int kMaxRows = kLanes >= 16 ? 12 : kLanes >= 8 ? 6 : kLanes >= 4 ? 2 : 1;

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

// The walk. A Kernel is a type with
//   Weight                       what a panel is an array of
//   PanelWeights(k)              of how many
//   MaxPanels(rows)              panels per call for tiles of so many rows: 3 or 1, or a power of two up to 8
//   Tile<R, P>(args, x, w, row, panel)
//                                y for R rows from `row` and P panels from `panel`, whose packed inputs
//                                are at x and whose weights are at w

template <class Kernel, int P, int R = 1>
void TileOfHeight(const LinearRows& a, const float* x, const typename Kernel::Weight* w,
                  int64_t row, int64_t height, int64_t panel) {
  if constexpr (R > kMaxRows || Kernel::MaxPanels(R) < P) {
    return;  // never reached: TilesOf and PanelsPerCall bound the height
  } else {
    if (height == R) return Kernel::template Tile<R, P>(a, x, w, row, panel);
    TileOfHeight<Kernel, P, R + 1>(a, x, w, row, height, panel);
  }
}

// All tiles of rows over one group of P panels, which stays in the second-level cache meanwhile.
template <class Kernel, int P>
void PanelGroup(const LinearRows& a, const float* packed, const RowTiles& tiles, int64_t panel) {
  const auto* w =
      static_cast<const typename Kernel::Weight*>(a.panels) + panel * Kernel::PanelWeights(a.k);
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = tiles.first_row(t, a.rows);
    const int64_t height = tiles.first_row(t + 1, a.rows) - row;
    TileOfHeight<Kernel, P>(a, packed + PackedInputFloats(a.format, row, a.k), w, row, height, panel);
  }
}

template <class Kernel>
int64_t PanelsPerCall(int64_t rows) {
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  return Kernel::MaxPanels(static_cast<int>((rows + tiles - 1) / tiles));
}

template <class Kernel>
void RunPanels(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
  const RowTiles tiles = TilesOf(a.rows);
  int64_t at_once = PanelsPerCall<Kernel>(a.rows);
  for (int64_t panel = begin; panel < end; panel += at_once) {
    while (at_once > end - panel) at_once /= 2;
    if (at_once == 8) PanelGroup<Kernel, 8>(a, packed, tiles, panel);
    if (at_once == 4) PanelGroup<Kernel, 4>(a, packed, tiles, panel);
    if constexpr (Kernel::MaxPanels(1) == 3) {
      if (at_once == 3) PanelGroup<Kernel, 3>(a, packed, tiles, panel);
    }
    if (at_once == 2) PanelGroup<Kernel, 2>(a, packed, tiles, panel);
    if (at_once == 1) PanelGroup<Kernel, 1>(a, packed, tiles, panel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
