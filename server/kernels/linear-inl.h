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
#include <type_traits>

#include "kernels/linear_rows.h"
#include "kernels/read_ahead.h"
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

// v as it is when stored as T and read again.
template <typename T>
HWY_INLINE VF Rounded(VF v) {
  if constexpr (std::is_same_v<T, float>) return v;
  const DF d;
  HWY_ALIGN T stored[kLanes];
  StoreVec(d, v, stored);
  return LoadVec(d, stored);
}

// Stores, or adds, the first `lanes` outputs of a vector.
template <typename T>
HWY_INLINE void StoreLanes(LinearExit exit, VF sum, T* y, size_t lanes) {
  const DF d;
  const bool whole = lanes == kLanes;
  if (exit == LinearExit::kAdd) {
    sum = hn::Add(whole ? LoadVec(d, y) : LoadPart(d, y, lanes), Rounded<T>(sum));
  }
  whole ? StoreVec(d, sum, y) : StorePart(d, sum, y, lanes);
}

// Adds the bias and stores the outputs of one vector that exist.
[[maybe_unused]] HWY_NOINLINE static void StoreOutputs(const LinearRows& a, VF sum, int64_t row, int64_t first) {
  const DF d;
  if (first >= a.n) return;
  const size_t lanes = std::min(kLanes, static_cast<size_t>(a.n - first));
  if (a.bias != nullptr) {
    sum = hn::Add(sum, lanes == kLanes ? hn::LoadU(d, a.bias + first) : LoadPart(d, a.bias + first, lanes));
  }
  const int64_t to = row * a.y_stride + first;
  if (a.y_type == RowType::kFloat32) return StoreLanes(a.exit, sum, static_cast<float*>(a.y) + to, lanes);
  StoreLanes(a.exit, sum, static_cast<uint16_t*>(a.y) + to, lanes);
}

// Gate and up outputs of a tile, apart: [R][kWidth], where one panel fills half a vector of 16 lanes.
template <int R, int P>
struct GatedSums {
  static constexpr size_t kWidth = std::max(static_cast<size_t>(P * kGateRun), kLanes);
  HWY_ALIGN float gate[R][kWidth];
  HWY_ALIGN float up[R][kWidth];

  explicit HWY_INLINE GatedSums(const VF (&acc)[R][P][kVectors]) {
    const DF d;
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        if constexpr (kVectors == 1) {
#if HWY_TARGET != HWY_SCALAR
          if (p % 2 != 0) continue;  // two panels fill a vector
          const VF low = acc[r][p][0], high = acc[r][p + 1 < P ? p + 1 : p][0];
          hn::StoreU(hn::ConcatLowerLower(d, high, low), d, gate[r] + p * kGateRun);
          hn::StoreU(hn::ConcatUpperUpper(d, high, low), d, up[r] + p * kGateRun);
#endif
        } else {
          for (int v = 0; v < kVectors / 2; ++v) {
            hn::StoreU(acc[r][p][v], d, gate[r] + p * kGateRun + v * static_cast<int64_t>(kLanes));
            hn::StoreU(acc[r][p][v + kVectors / 2], d, up[r] + p * kGateRun + v * static_cast<int64_t>(kLanes));
          }
        }
      }
    }
  }
};

// y[0, count) = silu(gate) * up, each with its bias, where there is one, and rounded as y is.
template <typename T>
HWY_NOINLINE static void StoreGated(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
                                    size_t count, T* y) {
  const DF d;
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t lanes = std::min(kLanes, count - i);
    const bool whole = lanes == kLanes;
    VF g = hn::LoadU(d, gate + i), u = hn::LoadU(d, up + i);
    if (gate_bias != nullptr) {
      g = hn::Add(g, whole ? hn::LoadU(d, gate_bias + i) : LoadPart(d, gate_bias + i, lanes));
      u = hn::Add(u, whole ? hn::LoadU(d, up_bias + i) : LoadPart(d, up_bias + i, lanes));
    }
    const VF gated = hn::Mul(SiluVec(d, Rounded<T>(g)), Rounded<T>(u));
    whole ? StoreVec(d, gated, y + i) : StorePart(d, gated, y + i, lanes);
  }
}

template <int R, int P>
HWY_INLINE void StoreGatedTile(const LinearRows& a, const VF (&acc)[R][P][kVectors], int64_t row, int64_t panel) {
  const GatedSums<R, P> sums(acc);
  const int64_t first = panel * kGateRun;
  const float* gate_bias = a.bias == nullptr ? nullptr : a.bias + first;
  const float* up_bias = a.bias == nullptr ? nullptr : a.bias + a.n / 2 + first;
  for (int r = 0; r < R; ++r) {
    const int64_t to = (row + r) * a.y_stride + first;
    constexpr size_t kCount = static_cast<size_t>(P * kGateRun);
    if (a.y_type == RowType::kFloat32) {
      StoreGated(sums.gate[r], sums.up[r], gate_bias, up_bias, kCount, static_cast<float*>(a.y) + to);
    } else {
      StoreGated(sums.gate[r], sums.up[r], gate_bias, up_bias, kCount, static_cast<uint16_t*>(a.y) + to);
    }
  }
}

// A tile's sums to y. Every index is known when compiling, so that sums go to memory once, from their registers
// (as an array they are also cleared and read back there: an eighth of the time of a tile of 576 inputs).
template <int R, int P>
HWY_INLINE void StoreTile(const LinearRows& a, const VF (&acc)[R][P][kVectors], int64_t row, int64_t panel) {
  if (a.exit == LinearExit::kGate) return StoreGatedTile<R, P>(a, acc, row, panel);
  const DF d;
  const int64_t first = panel * kPanel;
  float* y = static_cast<float*>(a.y) + row * a.y_stride + first;
  const auto each = [&](const auto& store) HWY_ATTR NORMSERVE_INLINED {
    HWY_UNROLL(12)
    for (int r = 0; r < R; ++r) {
      HWY_UNROLL(8)
      for (int p = 0; p < P; ++p) {
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) store(acc[r][p][v], r, p * kPanel + v * static_cast<int64_t>(kLanes));
      }
    }
  };
  if (a.y_type != RowType::kFloat32 || a.bias != nullptr || first + P * kPanel > a.n) {
    each([&](VF sum, int r, int64_t at) HWY_ATTR NORMSERVE_INLINED { StoreOutputs(a, sum, row + r, first + at); });
  } else if (a.exit == LinearExit::kAdd) {
    each([&](VF sum, int r, int64_t at) HWY_ATTR NORMSERVE_INLINED {
      float* to = y + r * a.y_stride + at;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum), d, to);
    });
  } else {
    each([&](VF sum, int r, int64_t at) HWY_ATTR NORMSERVE_INLINED { hn::StoreU(sum, d, y + r * a.y_stride + at); });
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
    const auto store = [&](size_t at, hn::Vec<decltype(dw)> v) HWY_ATTR NORMSERVE_INLINED {
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

// Part `part` of a tile's inputs as its kernel reads them, packed[word][row]. make(row, first, count, out) gives words
// [first, first + count) of a row, where first is a multiple of kChunk (a multiple of 4): floats, pairs of bfloat16, or
// the words of groups.
template <size_t kChunk, class Make>
void InterleaveTile(size_t height, size_t words, int64_t part, const Make& make, float* packed) {
  HWY_ALIGN uint32_t rows[kMaxRows][kChunk];
  const size_t chunks = (words + kChunk - 1) / kChunk, p = static_cast<size_t>(part), parts = kTileParts;
  for (size_t chunk = p * chunks / parts; chunk < (p + 1) * chunks / parts; ++chunk) {
    const size_t first = chunk * kChunk;
    char* to = reinterpret_cast<char*>(packed) + first * height * 4;
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
//   kAsks                        whether its tiles ask for what `asked` points at
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

// A group's tiles can ask for tiles * panels panels: what is left of those beside the group's own, which the first tile of a
// first group asks for, and the next group's, of which the tiles after it, or all, ask for one each.
HWY_INLINE size_t IdleAsks(int64_t tiles, int64_t panels, bool first, int64_t left) {
  const int64_t next = std::max<int64_t>(0, std::min({panels, tiles, left - panels}));
  const int64_t own = first ? panels : 0;
  return static_cast<size_t>(tiles * panels - own - (first ? std::max<int64_t>(0, next - 1) : next));
}

// All tiles of rows over the group of P panels from `panel` on, of panels [begin, end); they stay in the second-level
// cache meanwhile. Where there are as many tiles as panels, each asks for one panel of the next group, so that memory
// works all the time and not during the first tile only; in the place of the panels that are near already they ask for
// what is read after this layer.
template <class Kernel, int P>
void PanelGroup(const LinearRows& a, const float* packed, const RowTiles& tiles, int64_t panel, int64_t begin,
                int64_t end) {
  const int64_t panel_weights = Kernel::PanelWeights(a.k);
  const auto* w = static_cast<const typename Kernel::Weight*>(a.panels) + panel * panel_weights;
  const bool in_turns = Kernel::kAsks && tiles.count >= P && P <= 4;
  const size_t panel_bytes = static_cast<size_t>(panel_weights) * sizeof(typename Kernel::Weight);
  ReadAhead::Lines later;
  if (in_turns && a.read_ahead != nullptr) {
    later = a.read_ahead->Take(P * panel_bytes, panel_bytes, IdleAsks(tiles.count, P, panel == begin, end - panel));
  }
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = tiles.first_row(t, a.rows);
    const int64_t height = tiles.first_row(t + 1, a.rows) - row;
    const bool own = t == 0 && (panel == begin || !in_turns);
    Asked<typename Kernel::Weight, P> asked;
    for (int64_t p = 0; p < P; ++p) {
      asked[p] = w + p * panel_weights + (own ? static_cast<int64_t>(Kernel::kAhead) : 0);  // 0: it is near already
    }
    if (in_turns && !own) {
      const bool next_panel = t < P && panel + P + t < end;
      if (next_panel) asked[0] = w + (P + t) * panel_weights;
      for (int64_t p = next_panel ? 1 : 0; p < P && later.bytes > 0; ++p) {
        asked[p] = reinterpret_cast<const typename Kernel::Weight*>(later.begin);
        later.begin += panel_bytes;
        later.bytes -= std::min(later.bytes, panel_bytes);
      }
    }
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
