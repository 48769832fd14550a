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

#if HWY_TARGET == HWY_AVX2

using DNarrow = hn::CappedTag<float, 4>;
inline constexpr size_t kNarrowLanes = 4;
inline constexpr size_t kNarrowStrip = 8;  // outputs at once: 2 vectors for each of up to 6 rows

HWY_INLINE hn::Vec<DNarrow> LoadNarrow(const float* from) { return hn::LoadU(DNarrow(), from); }
HWY_INLINE hn::Vec<DNarrow> LoadNarrow(const uint16_t* from) {
  const DNarrow d;
  const hn::RebindToUnsigned<DNarrow> du;
  const hn::Rebind<uint16_t, DNarrow> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

// Half a panel for R rows in 128-bit vectors, to y: the same chains of multiply-adds.
template <int R, typename W>
HWY_INLINE void NarrowStrip(size_t k, const float* HWY_RESTRICT x, const W* HWY_RESTRICT w,
                            float (&y)[R][kPanel], size_t strip) {
  const DNarrow d;
  constexpr size_t kParts = kNarrowStrip / kNarrowLanes;
  hn::Vec<DNarrow> acc[R][kParts];
  for (int r = 0; r < R; ++r) {
    for (size_t v = 0; v < kParts; ++v) acc[r][v] = hn::Zero(d);
  }
  for (size_t i = 0; i < k; ++i) {
    const W* at = w + i * kPanel + strip * kNarrowStrip;
    hwy::Prefetch(at + kAheadBytes / sizeof(W));  // twice a line: a branch costs more
    hn::Vec<DNarrow> weights[kParts];
    for (size_t v = 0; v < kParts; ++v) weights[v] = LoadNarrow(at + v * kNarrowLanes);
    for (size_t r = 0; r < R; ++r) {
      const auto input = hn::Set(d, x[i * R + r]);
      for (size_t v = 0; v < kParts; ++v) acc[r][v] = hn::MulAdd(input, weights[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (size_t v = 0; v < kParts; ++v) {
      hn::StoreU(acc[r][v], d, &y[r][strip * kNarrowStrip + v * kNarrowLanes]);
    }
  }
}

template <int R, typename W>
void NarrowTile(const LinearRows& a, const float* x, const W* w, int64_t row, int64_t panel) {
  HWY_ALIGN float y[R][kPanel];
  for (size_t strip = 0; strip < kPanel / kNarrowStrip; ++strip) {
    NarrowStrip<R>(static_cast<size_t>(a.k), x, w, y, strip);
  }
  for (int r = 0; r < R; ++r) {
    VF sums[kVectors];
    for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
      sums[v] = hn::Load(DF(), &y[r][v * kLanes]);
    }
    StorePanel(a, sums, row + r, panel * kPanel);
  }
}

#endif

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
#if HWY_TARGET == HWY_AVX2
    if constexpr (P == 1 && R > 1) {
      if (a.narrow) return NarrowTile<R>(a, x, w, row, panel);
    }
#endif
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

int64_t PanelsAtOnceTarget(int64_t rows) { return PanelsPerCall<FloatKernel<float>>(rows); }

void LinearPanelsTarget(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  if (args.format == WeightFormat::kFloat32) {
    return RunPanels<FloatKernel<float>>(args, packed, begin, end);
  }
  RunPanels<FloatKernel<uint16_t>>(args, packed, begin, end);
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

int64_t PanelsAtOnce(int64_t rows) { return HWY_DYNAMIC_DISPATCH(PanelsAtOnceTarget)(rows); }

void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackInputsTarget)(args, begin, end, packed);
}

void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LinearPanelsTarget)(args, packed, begin, end);
}

}  // namespace normserve::kernels
#endif
