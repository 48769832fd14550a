// SPDX-License-Identifier: Apache-2.0
// Linear over quantised weights by AVX512-VNNI, whose instruction multiplies four 8-bit inputs with four weights each
// of 16 outputs and adds them to a 32-bit sum: four times the multiplications of float32. So inputs are rounded to
// 8 bits here, not 16. Its own file, since the instruction is not of any target that Highway names in all the
// versions that we build with. No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

// Also for what is included below: it is inlined always, or a template with VnniKernel among its arguments, so that
// no other file's code is replaced by it.
#if HWY_TARGET == HWY_AVX3
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512vnni"
#endif

#include "kernels/integers-inl.h"
#include "kernels/linear-inl.h"
#include "kernels/simd-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// One group of inputs of a tile: x = scale * q. The instruction takes one factor without a sign, the weights: 8-bit
// ones come as w + 128, so that their sums begin at start = -128 (q0 + q1 + ...); 4-bit ones have no sign, and
// their least value is multiplied with sum = scale * (q0 + q1 + ...). A group with a NaN or Inf has scale NaN and
// q 0; one with nothing above 1e-30 is taken as zeros.
template <int R>
struct ByteInputs {
  int8_t q[kQuads][R][kQuad];
  float scale[R];
  int32_t start[R];
  float sum[R];
};
static_assert(sizeof(ByteInputs<1>) <= sizeof(QuantisedInputs<1>), "PackedInputFloats makes room for the larger");

// The weights of a quad of inputs.
HWY_INLINE __m512i LoadQuad(const Int8Group& group, size_t quad) {
  return _mm512_xor_si512(_mm512_loadu_si512(group.q[quad]), _mm512_set1_epi8(-128));
}
HWY_INLINE __m512i LoadQuad(const Int4Group& group, size_t quad) {
  const __m512i both = _mm512_loadu_si512(group.q[quad / 2]);
  return _mm512_and_si512(quad % 2 == 0 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}

template <class Group>
struct VnniKernel {
  using Weight = Group;
  static constexpr bool kSigned = std::is_same_v<Group, Int8Group>;
  static constexpr int64_t PanelWeights(int64_t k) { return GroupsOf(k); }
  static constexpr size_t kAhead = 4096 / sizeof(Group);
  static constexpr bool kAsks = true;

  // Every sum is an integer one, in a register, and a float32 one, in memory between groups.
  static constexpr int MaxPanels(int rows) {
    int panels = 8;
    while (panels > 1 && panels * (rows + 1) > kRegisters - 2) panels /= 2;
    return panels;
  }

  // Adds one group's scaled sums to y.
  template <int R, int P>
  static HWY_INLINE void AddGroup(const ByteInputs<R>& x, const Group* const (&w)[P], VF (&y)[R][P][kVectors]) {
    const DF d;
    VI sum[R][P];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) sum[r][p] = hn::Set(DI(), kSigned ? x.start[r] : 0);
    }
    HWY_UNROLL(8)
    for (size_t quad = 0; quad < static_cast<size_t>(kQuads); ++quad) {
      __m512i weights[P];
      for (int p = 0; p < P; ++p) weights[p] = LoadQuad(*w[p], quad);
      for (int r = 0; r < R; ++r) {
        int32_t input;
        std::memcpy(&input, x.q[quad][r], sizeof(input));
        for (int p = 0; p < P; ++p) {
          sum[r][p].raw = _mm512_dpbusd_epi32(sum[r][p].raw, weights[p], _mm512_set1_epi32(input));
        }
      }
    }
    for (int p = 0; p < P; ++p) {
      const VF scale = LoadVec(d, w[p]->scale);
      for (int r = 0; r < R; ++r) {
        const VF both = hn::Mul(scale, hn::Set(d, x.scale[r]));
        y[r][p][0] = hn::MulAdd(hn::ConvertTo(d, sum[r][p]), both, y[r][p][0]);
      }
      if constexpr (!kSigned) {
        const VF least = LoadVec(d, w[p]->least);
        for (int r = 0; r < R; ++r) y[r][p][0] = hn::MulAdd(least, hn::Set(d, x.sum[r]), y[r][p][0]);
      }
    }
  }

  template <int R, int P>
  static void Tile(const LinearRows& a, const float* packed, const Group* weights, const Asked<Group, P>& asked,
                   int64_t row, int64_t panel) {
    const DF d;
    const size_t groups = static_cast<size_t>(GroupsOf(a.k));
    const auto* x = reinterpret_cast<const ByteInputs<R>*>(packed);
    VF y[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) y[r][p][0] = hn::Zero(d);
    }
    for (size_t g = 0; g < groups; ++g) {
      const Group* w[P];
      for (size_t p = 0; p < P; ++p) {
        w[p] = weights + p * groups + g;
        if constexpr (P <= 4) {
          const char* ahead = reinterpret_cast<const char*>(asked[p] + g);
          for (size_t byte = 0; byte < sizeof(Group); byte += 64) AskSecondLevel(ahead + byte);
        }
      }
      AddGroup<R, P>(x[g], w, y);
    }
    StoreTile<R, P>(a, y, row, panel);
  }
};

// A group of one row's inputs, in the order of quads' places.
struct ByteGroup {
  alignas(32) int8_t q[kGroup];
  float scale;
  int32_t sum;
};

// `count` of the group's 32 inputs exist.
template <typename T>
HWY_INLINE ByteGroup RoundGroup(const T* from, size_t count) {
  const DF d;
  const DI di;
  VF x[2] = {hn::Zero(d), hn::Zero(d)};
  if (count >= static_cast<size_t>(kGroup)) {
    x[0] = LoadVec(d, from);
    x[1] = LoadVec(d, from + kLanes);
  } else {
    x[0] = LoadPart(d, from, std::min(count, kLanes));
    if (count > kLanes) x[1] = LoadPart(d, from + kLanes, count - kLanes);
  }
  // Magnitudes compare as their bits do, and those of Inf and NaN are above all others.
  const VI largest = hn::Max(hn::BitCast(di, hn::Abs(x[0])), hn::BitCast(di, hn::Abs(x[1])));
  const int32_t bits = _mm512_reduce_max_epi32(largest.raw);
  float max;
  std::memcpy(&max, &bits, sizeof(max));
  ByteGroup group{};
  if (bits >= 0x7F800000) {
    group.scale = std::numeric_limits<float>::quiet_NaN();
    return group;
  }
  if (max < 1e-30f) return group;
  const VF inverse = hn::Set(d, 127.0f / max);
  const VI low = hn::NearestInt(hn::Mul(x[0], inverse)), high = hn::NearestInt(hn::Mul(x[1], inverse));
  const __m256i in_order = _mm256_set_m128i(_mm512_cvtepi32_epi8(high.raw), _mm512_cvtepi32_epi8(low.raw));
  const __m256i places = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));  // PlaceInQuad
  _mm256_store_si256(reinterpret_cast<__m256i*>(group.q), _mm256_shuffle_epi8(in_order, places));
  group.scale = max / 127.0f;
  group.sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low.raw, high.raw));
  return group;
}

// Words of a row's group in ByteInputs.
constexpr size_t kGroupWords = sizeof(ByteInputs<1>) / 4;

template <typename T>
void RoundTile(const LinearRows& a, int64_t first, int64_t height, int64_t part, float* packed) {
  const auto round = [&](size_t row, size_t at, size_t count, uint32_t* out) {
    const T* from = static_cast<const T*>(a.x) + (first + static_cast<int64_t>(row)) * a.x_stride;
    for (size_t word = 0; word < count; word += kGroupWords) {
      const size_t input = (at + word) / kGroupWords * kGroup;
      const ByteGroup group = RoundGroup(from + input, static_cast<size_t>(a.k) - input);
      ByteInputs<1> words;
      std::memcpy(words.q, group.q, sizeof(words.q));
      words.scale[0] = group.scale;
      words.start[0] = -128 * group.sum;
      words.sum[0] = group.scale * static_cast<float>(group.sum);
      std::memcpy(out + word, &words, sizeof(words));
    }
  };
  InterleaveTile<4 * kGroupWords>(static_cast<size_t>(height), kGroupWords * static_cast<size_t>(GroupsOf(a.k)), part,
                                  round, packed);
}

void RoundInputs(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  const RowTiles tiles = TilesOf(a.rows);
  for (int64_t part = begin; part < end; ++part) {
    const int64_t t = part / kTileParts, first = tiles.first_row(t, a.rows);
    const int64_t height = tiles.first_row(t + 1, a.rows) - first;
    float* to = packed + PackedInputFloats(a.format, first, a.k);
    if (a.x_type == RowType::kFloat32) {
      RoundTile<float>(a, first, height, part % kTileParts, to);
    } else {
      RoundTile<uint16_t>(a, first, height, part % kTileParts, to);
    }
  }
}

void MultiplyPanels(const LinearRows& a, const float* packed, int64_t begin, int64_t end) {
  if (a.format == WeightFormat::kInt8) return RunPanels<VnniKernel<Int8Group>>(a, packed, begin, end);
  RunPanels<VnniKernel<Int4Group>>(a, packed, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace normserve::kernels {

int64_t VnniPanelsAtOnce([[maybe_unused]] int64_t rows) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::PanelsPerCall<N_AVX3::VnniKernel<Int8Group>>(rows);
#else
  return 1;
#endif
}

void VnniInputsCpu([[maybe_unused]] const LinearRows& args, [[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end,
                [[maybe_unused]] float* packed) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::RoundInputs(args, begin, end, packed);
#endif
}

void VnniPanelsCpu([[maybe_unused]] const LinearRows& args, [[maybe_unused]] const float* packed,
                [[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) {
#if HWY_TARGETS & HWY_AVX3
  N_AVX3::MultiplyPanels(args, packed, begin, end);
#endif
}

}  // namespace normserve::kernels
#endif
