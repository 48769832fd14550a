// SPDX-License-Identifier: Apache-2.0
// The linear kernel over quantised weights: 16-bit inputs times 8-bit (or 4-bit) weights, two inputs at a
// time, summed exactly in 32-bit integers within a group. See linear_rows.h for the law that it keeps.
// Twice the multiplications per instruction of float32; 8-bit inputs would give no more without the dot
// product instructions of newer CPUs (linear_vnni.cc), and cost accuracy. No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_quantised_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "kernels/integers-inl.h"
#include "kernels/linear-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <class Group>
HWY_INLINE void LoadPair(const Group& group, size_t pair, VS (&w)[kVectors]) {
  const int64_t input = 2 * static_cast<int64_t>(pair);
  for (int64_t v = 0; v < kVectors; ++v) w[v] = {group.Value(v, input), group.Value(v, input + 1)};
}

#else

// The weights of 16 outputs at two inputs: the even bytes of their quad, widened, or the odd ones.
HWY_INLINE void LoadPair(const Int8Group& group, size_t pair, VS (&w)[kVectors]) {
  const hn::Repartition<int8_t, DS> d8;
  for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
    VS bytes = hn::BitCast(DS(), hn::LoadU(d8, &group.q[pair / 2][v * kLanes][0]));
    if (pair % 2 == 0) bytes = hn::ShiftLeft<8>(bytes);
    w[v] = hn::ShiftRight<8>(bytes);
  }
}

// The same, of half bytes.
HWY_INLINE void LoadPair(const Int4Group& group, size_t pair, VS (&w)[kVectors]) {
  const hn::Repartition<uint8_t, DS> d8;
  const hn::RebindToUnsigned<DS> du;
  const auto low = hn::Set(du, uint16_t{15});
  for (size_t v = 0; v < static_cast<size_t>(kVectors); ++v) {
    auto bits = hn::BitCast(du, hn::LoadU(d8, &group.q[pair / 4][v * kLanes][0]));
    switch (pair % 4) {
      case 0: bits = hn::And(bits, low); break;
      case 1: bits = hn::And(hn::ShiftRight<8>(bits), low); break;
      case 2: bits = hn::And(hn::ShiftRight<4>(bits), low); break;
      default: bits = hn::ShiftRight<12>(bits);
    }
    w[v] = hn::BitCast(DS(), bits);
  }
}

#endif

HWY_INLINE VF LoadScales(const uint16_t* scales, size_t v) {
  return LoadVec(DF(), scales + v * kLanes);
}

// Adds one group's scaled sums to y.
template <int R, int P, class Group>
HWY_INLINE void AddGroup(const QuantisedInputs<R>& x, const Group* const (&w)[P],
                         VF (&y)[R][P][kVectors]) {
  const DF d;
  const DI di;
  VI sum[R][P][kVectors], odd[R][P][kVectors];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      for (int v = 0; v < kVectors; ++v) sum[r][p][v] = odd[r][p][v] = hn::Zero(di);
    }
  }
  HWY_UNROLL(16)
  for (size_t pair = 0; pair < static_cast<size_t>(kPairs); ++pair) {
    VS weights[P][kVectors];
    for (int p = 0; p < P; ++p) LoadPair(*w[p], pair, weights[p]);
    for (int r = 0; r < R; ++r) {
      const VS input = SetPair(x.q[pair][r]);
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) {
          sum[r][p][v] = MulPairsAdd(input, weights[p][v], sum[r][p][v], odd[r][p][v]);
        }
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    for (int v = 0; v < kVectors; ++v) {
      const VF scale = LoadScales(w[p]->scale, static_cast<size_t>(v));
      for (int r = 0; r < R; ++r) {
        const VI exact = WholeSum(sum[r][p][v], odd[r][p][v]);
        const VF both = hn::Mul(scale, hn::Set(d, x.scale[r]));
        y[r][p][v] = hn::MulAdd(hn::ConvertTo(d, exact), both, y[r][p][v]);
      }
      if constexpr (std::is_same_v<Group, Int4Group>) {
        const VF least = LoadScales(w[p]->least, static_cast<size_t>(v));
        for (int r = 0; r < R; ++r) {
          y[r][p][v] = hn::MulAdd(least, hn::Set(d, x.sum[r]), y[r][p][v]);
        }
      }
    }
  }
}

template <class Group>
struct QuantisedKernel {
  using Weight = Group;
  static constexpr int64_t PanelWeights(int64_t k) { return GroupsOf(k); }
  static constexpr size_t kAhead = 4096 / sizeof(Group);
  static constexpr bool kAsks = true;

  // Every sum is an integer one, in a register, and a float32 one, in memory between groups.
  static constexpr int MaxPanels(int rows) {
    int panels = 8;
    while (panels > 1 && panels * kVectors * (rows + 1) > kRegisters - 2) panels /= 2;
    return panels;
  }

  template <int R, int P>
  static void Tile(const LinearRows& a, const float* packed, const Group* weights, const Asked<Group, P>& asked,
                   int64_t row, int64_t panel) {
    const DF d;
    const size_t groups = static_cast<size_t>(GroupsOf(a.k));
    const auto* x = reinterpret_cast<const QuantisedInputs<R>*>(packed);
    VF y[R][P][kVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        for (int v = 0; v < kVectors; ++v) y[r][p][v] = hn::Zero(d);
      }
    }
    for (size_t g = 0; g < groups; ++g) {
      const Group* w[P];
      for (int p = 0; p < P; ++p) {
        w[p] = weights + static_cast<size_t>(p) * groups + g;
        const char* ahead = reinterpret_cast<const char*>(asked[p] + g);
        for (size_t byte = 0; byte < sizeof(Group); byte += 64) AskSecondLevel(ahead + byte);
      }
      AddGroup<R, P>(x[g], w, y);
    }
    StoreTile<R, P>(a, y, row, panel);
  }
};

int64_t QuantisedPanelsAtOnceTarget(int64_t rows) {
  return PanelsPerCall<QuantisedKernel<Int8Group>>(rows);
}

void QuantisedPanelsTarget(const LinearRows& args, const float* packed, int64_t begin,
                           int64_t end) {
  if (args.format == WeightFormat::kInt8) {
    return RunPanels<QuantisedKernel<Int8Group>>(args, packed, begin, end);
  }
  RunPanels<QuantisedKernel<Int4Group>>(args, packed, begin, end);
}

// One group of one row, as float32; zeros after the row's end.
template <typename T>
HWY_INLINE void LoadGroup(const T* from, size_t count, float* to) {
  const DF d;
  if (count >= static_cast<size_t>(kGroup)) {
    for (size_t i = 0; i < static_cast<size_t>(kGroup); i += kLanes) {
      hn::StoreU(LoadVec(d, from + i), d, to + i);
    }
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(kGroup); ++i) to[i] = i < count ? ToFloat(from[i]) : 0.0f;
}

// Words of a row's group in QuantisedInputs.
constexpr size_t kGroupWords = sizeof(QuantisedInputs<1>) / 4;

template <typename T>
void QuantiseTile(const LinearRows& a, int64_t first, int64_t height, int64_t part, float* packed) {
  const auto quantise = [&](size_t row, size_t at, size_t count, uint32_t* out) {
    const T* from = static_cast<const T*>(a.x) + (first + static_cast<int64_t>(row)) * a.x_stride;
    for (size_t word = 0; word < count; word += kGroupWords) {
      const size_t input = (at + word) / kGroupWords * kGroup;
      HWY_ALIGN float x[kGroup];
      HWY_ALIGN int16_t q[kGroup];
      LoadGroup(from + input, static_cast<size_t>(a.k) - input, x);
      QuantisedInputs<1> words{};
      const Rounding rounding = RoundingOf(LargestBits(x, kGroup), 32767.0f, 1e-30f);
      RoundAll(x, kGroup, rounding, q);
      words.scale[0] = rounding.scale;
      std::memcpy(words.q, q, sizeof(words.q));
      if (a.format == WeightFormat::kInt4) {  // only its groups have a least value
        int32_t sum = 0;
        for (const int16_t value : q) sum += value;
        words.sum[0] = words.scale[0] * static_cast<float>(sum);
      }
      std::memcpy(out + word, &words, sizeof(words));
    }
  };
  InterleaveTile<4 * kGroupWords>(static_cast<size_t>(height), kGroupWords * static_cast<size_t>(GroupsOf(a.k)), part,
                                  quantise, packed);
}

void QuantiseInputsTarget(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  const RowTiles tiles = TilesOf(args.rows);
  for (int64_t part = begin; part < end; ++part) {
    const int64_t t = part / kTileParts, first = tiles.first_row(t, args.rows);
    const int64_t height = tiles.first_row(t + 1, args.rows) - first;
    float* to = packed + PackedInputFloats(args.format, first, args.k);
    if (args.x_type == RowType::kFloat32) {
      QuantiseTile<float>(args, first, height, part % kTileParts, to);
    } else {
      QuantiseTile<uint16_t>(args, first, height, part % kTileParts, to);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(QuantisedPanelsAtOnceTarget);
HWY_EXPORT(QuantiseInputsTarget);
HWY_EXPORT(QuantisedPanelsTarget);

int64_t QuantisedPanelsAtOnce(int64_t rows) {
  return HWY_DYNAMIC_DISPATCH(QuantisedPanelsAtOnceTarget)(rows);
}

void QuantiseInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(QuantiseInputsTarget)(args, begin, end, packed);
}

void QuantisedPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(QuantisedPanelsTarget)(args, packed, begin, end);
}

}  // namespace normserve::kernels
#endif
