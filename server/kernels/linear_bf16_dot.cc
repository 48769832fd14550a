// SPDX-License-Identifier: Apache-2.0
// The linear kernel whose inputs are bfloat16 as the weights are (WeightFormat::kBFloat16Dot): an instruction
// multiplies two inputs with two weights each of 16 outputs and adds both to a float32 sum, twice the
// multiplications of float32. AVX512-BF16 only. Its own file, since the instructions are not of any target that
// Highway names in all the versions that we build with. No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_bf16_dot.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Also for what is included below: it is inlined always, or a template with BFloat16DotKernel among its arguments,
// so that no other file's code is replaced by it.
#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16"
#endif

#include "kernels/linear-inl.h"
#include "kernels/simd-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

struct BFloat16DotKernel {
  using Weight = uint32_t;  // of two inputs
  static constexpr int64_t PanelWeights(int64_t k) { return LinesOf<Weight>(k) * kPanel; }
  static constexpr int MaxPanels(int rows) { return PanelsInRegisters(rows); }
  static constexpr size_t kAhead = kFloatAheadBytes / sizeof(Weight);
  static constexpr bool kAsks = true;

  // Inputs lie as [pairs, R] words of two. An output's sum is one chain over the pairs in order; the instruction
  // takes subnormal numbers and sums as 0.
  template <int R, int P>
  static void Tile(const LinearRows& a, const float* packed, const Weight* HWY_RESTRICT w,
                   const Asked<Weight, P>& asked, int64_t row, int64_t panel) {
    const DF d;
    const size_t lines = static_cast<size_t>(LinesOf<Weight>(a.k));
    const size_t panel_weights = lines * kPanel;
    const auto* HWY_RESTRICT x = reinterpret_cast<const int32_t*>(packed);
    VF acc[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) acc[r][p][0] = hn::Zero(d);
    }
    size_t line = 0;
    do {
      for (int p = 0; p < P && P <= 4; ++p) AskSecondLevel(asked[p] + line * kPanel);
      __m512bh weights[P];
      for (size_t p = 0; p < P; ++p) {
        weights[p] = (__m512bh)_mm512_loadu_si512(w + p * panel_weights + line * kPanel);
      }
      for (size_t r = 0; r < R; ++r) {
        const auto input = (__m512bh)_mm512_set1_epi32(x[line * R + r]);
        for (int p = 0; p < P; ++p) {
          acc[r][p][0].raw = _mm512_dpbf16_ps(acc[r][p][0].raw, input, weights[p]);
        }
      }
    } while (++line < lines);
    StoreTile<R, P>(a, acc, row, panel);
  }
};

// 32 inputs of a row, of which `count` exist, as 16 words of two bfloat16.
template <typename T>
HWY_INLINE void RoundInputs(const T* from, size_t count, uint32_t* to) {
  const DF d;
  VF low = hn::Zero(d), high = hn::Zero(d);
  if (count >= 2 * kLanes) {
    low = LoadVec(d, from);
    high = LoadVec(d, from + kLanes);
  } else {
    low = LoadPart(d, from, count);
    if (count > kLanes) high = LoadPart(d, from + kLanes, count - kLanes);
  }
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high.raw, low.raw));
}

// Words of a row that are interleaved at a time: a multiple of those of RoundInputs.
constexpr size_t kChunk = 64;

template <typename T>
void PackBFloat16TilesOf(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  const RowTiles tiles = TilesOf(a.rows);
  const size_t k = static_cast<size_t>(a.k), pairs = (k + 1) / 2;
  for (int64_t part = begin; part < end; ++part) {
    const int64_t t = part / kTileParts, first = tiles.first_row(t, a.rows);
    const auto round = [&](size_t row, size_t at, size_t count, uint32_t* out) {
      const T* from = static_cast<const T*>(a.x) + (first + static_cast<int64_t>(row)) * a.x_stride;
      for (size_t i = 0; i < count; i += kLanes) {
        // Of the next chunk: another thread wrote them, and its cache is as far away as memory.
        const T* ahead = from + 2 * (at + i + kChunk);
        AskSecondLevel(ahead);
        AskSecondLevel(ahead + kLanes);
        RoundInputs(from + 2 * (at + i), k - 2 * (at + i), out + i);
      }
    };
    InterleaveTile<kChunk>(static_cast<size_t>(tiles.first_row(t + 1, a.rows) - first), pairs, part % kTileParts, round,
                           packed + static_cast<size_t>(first) * pairs);
  }
}

void PackBFloat16Tiles(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  if (a.x_type == RowType::kFloat32) return PackBFloat16TilesOf<float>(a, begin, end, packed);
  PackBFloat16TilesOf<uint16_t>(a, begin, end, packed);
}

void RunBFloat16Panels(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
  RunPanels<BFloat16DotKernel>(a, packed, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace normserve::kernels {

void PackBFloat16InputsCpu([[maybe_unused]] const LinearRows& args, [[maybe_unused]] int64_t begin,
                           [[maybe_unused]] int64_t end, [[maybe_unused]] float* packed) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::PackBFloat16Tiles(args, begin, end, packed);
#endif
}

int64_t BFloat16PanelsAtOnce([[maybe_unused]] int64_t rows) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::PanelsPerCall<N_AVX3::BFloat16DotKernel>(rows);
#else
  return 1;
#endif
}

void BFloat16PanelsCpu([[maybe_unused]] const LinearRows& args, [[maybe_unused]] const float* packed,
                       [[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::RunBFloat16Panels(args, packed, begin, end);
#endif
}

}  // namespace normserve::kernels
#endif
