// SPDX-License-Identifier: Apache-2.0
// What the linear kernels share, compiled once per Highway target: the shape of their register tiles, the
// walk over tiles and panels, and the store of a panel.
#if defined(NORMSERVE_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_LINEAR_INL_H_
#undef NORMSERVE_KERNELS_LINEAR_INL_H_
#else
#define NORMSERVE_KERNELS_LINEAR_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/linear_rows.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kVectors = static_cast<int>(kPanel / kLanes);  // per panel
inline constexpr int kRegisters = kLanes >= 16 ? 32 : 16;

// Rows per tile.
inline constexpr int kMaxRows = kLanes >= 16 ? 12 : kLanes >= 8 ? 6 : kLanes >= 4 ? 2 : 1;

template <typename W>
HWY_INLINE constexpr int64_t LinesOf(int64_t inputs) {
  constexpr int64_t kInputs = static_cast<int64_t>(Line<W>::kInputs);
  return (inputs + kInputs - 1) / kInputs;
}

// Panels per call of a float kernel. With R rows and P panels a step keeps R * P accumulators, P weights and one
// input; latency wants at least 8 accumulators, bandwidth wants few streams.
HWY_INLINE constexpr int PanelsInRegisters(int rows) {
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
constexpr size_t kFloatAheadBytes = 4096;

// What a tile asks memory for while it multiplies: one pointer per panel, each moving as the tile's own weights do.
template <class Weight, int P>
using Asked = const Weight* [P];

// Adds the bias, rounds and stores the outputs of one vector that exist.
[[maybe_unused]] HWY_NOINLINE static void StoreOutputs(const LinearRows& a, VF sum, int64_t row, int64_t first) {
  const DF d;
  if (first >= a.n) return;
  const size_t lanes = std::min(kLanes, static_cast<size_t>(a.n - first));
  const bool whole = lanes == kLanes;
  if (a.bias != nullptr) {
    sum = hn::Add(sum, whole ? hn::LoadU(d, a.bias + first) : LoadPart(d, a.bias + first, lanes));
  }
  const int64_t to = row * a.y_stride + first;
  if (a.y_type == RowType::kFloat32) {
    float* y = static_cast<float*>(a.y) + to;
    whole ? StoreVec(d, sum, y) : StorePart(d, sum, y, lanes);
  } else {
    uint16_t* y = static_cast<uint16_t*>(a.y) + to;
    whole ? StoreVec(d, sum, y) : StorePart(d, sum, y, lanes);
  }
}

// A tile's sums to y. Every index is known when compiling, so that sums go to memory once, from their registers
// (as an array they are also cleared and read back there: an eighth of the time of a tile of 576 inputs).
template <int R, int P>
HWY_INLINE void StoreTile(const LinearRows& a, const VF (&acc)[R][P][kVectors], int64_t row, int64_t panel) {
  const DF d;
  const int64_t first = panel * kPanel;
  const bool plain = a.y_type == RowType::kFloat32 && a.bias == nullptr && first + P * kPanel <= a.n;
  float* y = static_cast<float*>(a.y) + row * a.y_stride + first;
  HWY_UNROLL(12)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int p = 0; p < P; ++p) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = p * kPanel + v * static_cast<int64_t>(kLanes);
        if (HWY_LIKELY(plain)) {
          hn::StoreU(acc[r][p][v], d, y + r * a.y_stride + at);
        } else {
          StoreOutputs(a, acc[r][p][v], row + r, first + at);
        }
      }
    }
  }
}

// Words [0, count) of four rows, interleaved: to[word][0..3], `height` words from one to the next. May read up to 3
// words more, never writes more.
HWY_INLINE void InterleaveFour(const uint32_t* rows, size_t row_stride, size_t count, char* to, size_t height) {
  size_t word = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint32_t, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  for (; word < count; word += 4) {
    const auto a = hn::LoadU(d, rows + word), b = hn::LoadU(d, rows + row_stride + word);
    const auto c = hn::LoadU(d, rows + 2 * row_stride + word), e = hn::LoadU(d, rows + 3 * row_stride + word);
    const auto ab_low = hn::BitCast(dw, hn::InterleaveLower(d, a, b));
    const auto ab_high = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));
    const auto ce_low = hn::BitCast(dw, hn::InterleaveLower(d, c, e));
    const auto ce_high = hn::BitCast(dw, hn::InterleaveUpper(d, c, e));
    const auto store = [&](size_t at, hn::Vec<decltype(dw)> v) {
      if (at < count) hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<uint32_t*>(to + at * height * 4));
    };
    store(word, hn::InterleaveLower(dw, ab_low, ce_low));
    store(word + 1, hn::InterleaveUpper(dw, ab_low, ce_low));
    store(word + 2, hn::InterleaveLower(dw, ab_high, ce_high));
    store(word + 3, hn::InterleaveUpper(dw, ab_high, ce_high));
  }
#else
  for (; word < count; ++word) {
    for (size_t r = 0; r < 4; ++r) std::memcpy(to + (word * height + r) * 4, rows + r * row_stride + word, 4);
  }
#endif
}

// A tile's inputs as its kernel reads them, packed[word][row]. make(row, first, count, out) gives words [first,
// first + count) of a row, where first is a multiple of kChunk (a multiple of 4): floats, pairs of bfloat16, or the
// words of groups.
template <size_t kChunk, class Make>
void InterleaveTile(size_t height, size_t words, const Make& make, float* packed) {
  char* to = reinterpret_cast<char*>(packed);
  HWY_ALIGN uint32_t rows[kMaxRows][kChunk];
  for (size_t first = 0; first < words; first += kChunk, to += kChunk * height * 4) {
    const size_t count = std::min(kChunk, words - first);
    for (size_t r = 0; r < height; ++r) make(r, first, count, rows[r]);
    if (height == 1) {
      std::memcpy(to, rows[0], count * 4);
      continue;
    }
    size_t r = 0;
    if constexpr (kMaxRows >= 4) {
      for (; r + 4 <= height; r += 4) InterleaveFour(rows[r], kChunk, count, to + r * 4, height);
    }
    for (; r < height; ++r) {
      for (size_t word = 0; word < count; ++word) std::memcpy(to + (word * height + r) * 4, &rows[r][word], 4);
    }
  }
}

// The walk. A Kernel is a type with
//   Weight                       what a panel is an array of
//   PanelWeights(k)              of how many
//   MaxPanels(rows)              panels per call for tiles of so many rows: 3 or 1, or a power of two up to 8
//   kAhead                       how many weights ahead of its use one is asked for
//   Tile<R, P>(args, x, w, asked, row, panel)
//                                y for R rows from `row` and P panels from `panel`, whose packed inputs
//                                are at x and whose weights are at w

template <class Kernel, int P, int R = 1>
void TileOfHeight(const LinearRows& a, const float* x, const typename Kernel::Weight* w,
                  const Asked<typename Kernel::Weight, P>& asked, int64_t row, int64_t height, int64_t panel) {
  if constexpr (R > kMaxRows || Kernel::MaxPanels(R) < P) {
    return;  // never reached: TilesOf and PanelsPerCall bound the height
  } else {
    if (height == R) return Kernel::template Tile<R, P>(a, x, w, asked, row, panel);
    TileOfHeight<Kernel, P, R + 1>(a, x, w, asked, row, height, panel);
  }
}

// All tiles of rows over the group of P panels from `panel` on, of panels [begin, end); they stay in the second-level
// cache meanwhile. Where there are as many tiles as panels, each asks for one panel of the next group, so that memory
// works all the time and not during the first tile only.
template <class Kernel, int P>
void PanelGroup(const LinearRows& a, const float* packed, const RowTiles& tiles, int64_t panel, int64_t begin,
                int64_t end) {
  const int64_t panel_weights = Kernel::PanelWeights(a.k);
  const auto* w = static_cast<const typename Kernel::Weight*>(a.panels) + panel * panel_weights;
  const bool in_turns = tiles.count >= P && P <= 4;
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = tiles.first_row(t, a.rows);
    const int64_t height = tiles.first_row(t + 1, a.rows) - row;
    const bool own = t == 0 && (panel == begin || !in_turns);
    Asked<typename Kernel::Weight, P> asked;
    for (int64_t p = 0; p < P; ++p) {
      asked[p] = w + p * panel_weights + (own ? static_cast<int64_t>(Kernel::kAhead) : 0);  // 0: it is near already
    }
    if (in_turns && !own && t < P && panel + P + t < end) asked[0] = w + (P + t) * panel_weights;
    TileOfHeight<Kernel, P>(a, packed + PackedInputFloats(a.format, row, a.k), w, asked, row, height, panel);
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
    if (at_once == 8) PanelGroup<Kernel, 8>(a, packed, tiles, panel, begin, end);
    if (at_once == 4) PanelGroup<Kernel, 4>(a, packed, tiles, panel, begin, end);
    if constexpr (Kernel::MaxPanels(1) == 3) {
      if (at_once == 3) PanelGroup<Kernel, 3>(a, packed, tiles, panel, begin, end);
    }
    if (at_once == 2) PanelGroup<Kernel, 2>(a, packed, tiles, panel, begin, end);
    if (at_once == 1) PanelGroup<Kernel, 1>(a, packed, tiles, panel, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
