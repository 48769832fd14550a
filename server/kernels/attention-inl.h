// SPDX-License-Identifier: Apache-2.0
// Paged causal attention: each query row by itself, so that neither batch, chunk nor block size can
// change a bit. Softmax runs online over pieces of 512 positions counted from position 0: the working
// set is fixed whatever the context, and nothing is allocated. Compiled once per Highway target, and once more with
// the instructions of attention_bf16_dot.cc. No torch, no threads.
#if defined(NORMSERVE_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_ATTENTION_INL_H_
#undef NORMSERVE_KERNELS_ATTENTION_INL_H_
#else
#define NORMSERVE_KERNELS_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attention_rows.h"
#include "kernels/integers-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// Positions per softmax piece, and per strip of keys (a strip never straddles two blocks).
constexpr int64_t kPiece = 512;
constexpr int64_t kStrip = 16;
constexpr int kStripVectors = static_cast<int>(kStrip / kLanes);
// Query heads that share one load of keys and values.
constexpr int kMaxHeads = 4;

// How a cache's elements lie (qkv_rows.h) and are multiplied. kDot: pairs at once, by what linear_bf16_dot.cc
// multiplies with; then queries and weights are rounded to bfloat16, too. kBytes: as attention_int8-inl.h does.
struct FloatCache {
  using Element = float;
  static constexpr bool kDot = false, kBytes = false;
};
struct PairedCache {
  using Element = uint32_t;
  static constexpr bool kDot = false, kBytes = false;
};

// One (sequence, kv head): where its keys and values are. An element is a number of one position, or a pair of them:
// of keys at two neighbouring dimensions, of values at two neighbouring positions.
template <class C>
struct PagedHead {
  using T = typename C::Element;
  static constexpr int64_t kInputs = static_cast<int64_t>(Line<T>::kInputs);

  const T* keys;    // of block 0
  const T* values;  // of block 0
  const int32_t* table;
  size_t block_elements;  // from one block to the next
  int64_t block_size;
  size_t dim;

  // Positions are 32-bit numbers, and those are divided in half the time.
  size_t Block(int64_t position) const {
    return static_cast<size_t>(table[static_cast<uint32_t>(position) / static_cast<uint32_t>(block_size)]) * block_elements;
  }
  size_t InBlock(int64_t position) const {
    return static_cast<uint32_t>(position) % static_cast<uint32_t>(block_size);
  }
  const T* Keys(int64_t position) const { return keys + Block(position) + InBlock(position); }
  const T* Values(int64_t position) const {
    return values + Block(position) + InBlock(position) / static_cast<size_t>(kInputs) * dim;
  }
  size_t KeyRows() const { return dim / static_cast<size_t>(kInputs); }
};

// Number `input` of an element.
HWY_INLINE float NumberAt(float element, int64_t /*input*/) { return element; }
HWY_INLINE float NumberAt(uint32_t element, int64_t input) {
  return ToFloat(static_cast<uint16_t>(input == 0 ? element : element >> 16));
}

struct Work {
  alignas(64) float q[kMaxHeads][kMaxHeadDim];
  alignas(64) float p[kMaxHeads][kPiece];  // scores, then weights
  alignas(64) float acc[kMaxHeads][kMaxHeadDim];
  alignas(64) uint32_t q_pairs[kMaxHeads][kMaxHeadDim / 2];  // kDot: q and p as pairs of bfloat16
  alignas(64) uint32_t p_pairs[kMaxHeads][kPiece / 2];
  alignas(64) int16_t q_rounded[kMaxHeads][kMaxHeadDim];  // kBytes: whole numbers, and what they are multiples of
  alignas(64) int16_t p_rounded[kMaxHeads][kPiece];
  alignas(64) float value_scales[kPiece];  // 0 past the context
  float q_scale[kMaxHeads];
  float p_scale[kMaxHeads];
  float max[kMaxHeads];
  float sum[kMaxHeads];
};

// Scores of H heads at kStrips strips that begin at the given keys. Each score is one chain over the
// head's dimensions in order. Slots past the context give garbage lanes, which the caller drops.
// `values`, of the same positions, are asked for meanwhile, as many bytes.
template <class C, int H, int kStrips, typename T>
HWY_INLINE void ScoreStrips(const T* const* keys, const T* const* values, size_t stride, size_t rows,
                            float scale, Work& work, size_t at) {
  const DF d;
  VF acc[H][kStrips][kStripVectors];
  for (int h = 0; h < H; ++h) {
    for (int s = 0; s < kStrips; ++s) {
      for (int v = 0; v < kStripVectors; ++v) acc[h][s][v] = hn::Zero(d);
    }
  }
  constexpr size_t kInputs = Line<T>::kInputs;
  for (size_t i = 0; i < rows; ++i) {
    for (int s = 0; s < kStrips; ++s) {
      AskSecondLevel(values[s] + i * kStrip);
      for (int v = 0; v < kStripVectors; ++v) {
        const T* at_row = keys[s] + i * stride + v * kLanes;
        if constexpr (C::kDot) {
          for (int h = 0; h < H; ++h) acc[h][s][v] = C::AddPairs(work.q_pairs[h][i], at_row, acc[h][s][v]);
        } else {
          for (size_t j = 0; j < kInputs; ++j) {
            const VF k = Line<T>::Load(d, at_row, j);
            for (int h = 0; h < H; ++h) {
              acc[h][s][v] = hn::MulAdd(hn::Set(d, work.q[h][i * kInputs + j]), k, acc[h][s][v]);
            }
          }
        }
      }
    }
  }
  const VF factor = hn::Set(d, scale);
  for (int h = 0; h < H; ++h) {
    for (int s = 0; s < kStrips; ++s) {
      for (int v = 0; v < kStripVectors; ++v) {
        hn::StoreU(hn::Mul(acc[h][s][v], factor), d, work.p[h] + at + s * kStrip + v * kLanes);
      }
    }
  }
}

// Strips at once: enough independent chains to hide the latency of an addition, few enough
// accumulators for the registers.
template <int H>
HWY_INLINE constexpr int StripsAtOnce() {
  constexpr int kBudget = kLanes >= 16 ? 16 : 8;
  return std::max(1, std::min(4, kBudget / (H * kStripVectors)));
}

template <class C, int H>
void ScorePiece(const PagedHead<C>& head, int64_t begin, int64_t n, float scale, Work& work) {
  using T = typename C::Element;
  constexpr int kAtOnce = StripsAtOnce<H>();
  const size_t stride = static_cast<size_t>(head.block_size);
  int64_t at = 0;
  for (; at + kAtOnce * kStrip <= n; at += kAtOnce * kStrip) {
    const T* keys[kAtOnce];
    const T* values[kAtOnce];
    for (int s = 0; s < kAtOnce; ++s) {
      keys[s] = head.Keys(begin + at + s * kStrip);
      values[s] = head.Values(begin + at + s * kStrip);
    }
    ScoreStrips<C, H, kAtOnce>(keys, values, stride, head.KeyRows(), scale, work, static_cast<size_t>(at));
  }
  for (; at < n; at += kStrip) {
    const T* keys[1] = {head.Keys(begin + at)};
    const T* values[1] = {head.Values(begin + at)};
    ScoreStrips<C, H, 1>(keys, values, stride, head.KeyRows(), scale, work, static_cast<size_t>(at));
  }
}

// Turns a piece's scores into weights relative to the running maximum, and rescales what was summed
// under the old one. A NaN score makes its weight, hence the whole row, NaN. kBytes: leaves weights times their
// values' scales, rounded; the sum is of the weights themselves.
template <class C, int H>
void SoftmaxPiece(int64_t n, size_t dim, Work& work) {
  const DF d;
  const float inf = std::numeric_limits<float>::infinity();
  const size_t padded = static_cast<size_t>((n + kStrip - 1) / kStrip * kStrip);
  for (int h = 0; h < H; ++h) {
    float* p = work.p[h];
    for (size_t i = static_cast<size_t>(n); i < padded; ++i) p[i] = -inf;
    VF top = hn::Set(d, work.max[h]);
    for (size_t i = 0; i < padded; i += kLanes) top = hn::Max(top, hn::LoadU(d, p + i));
    const float max = hn::GetLane(hn::MaxOfLanes(d, top));
    const VF shift = hn::Set(d, max);
    VF sum = hn::Zero(d);
    VI largest = hn::Zero(DI());
    for (size_t i = 0; i < padded; i += kLanes) {
      const VF e = FastExpVec(d, hn::Sub(hn::LoadU(d, p + i), shift));
      sum = hn::Add(sum, e);
      if constexpr (C::kBytes) {
        const VF scaled = hn::Mul(e, hn::LoadU(d, work.value_scales + i));
        largest = hn::Max(largest, MagnitudeBits(scaled));
        hn::StoreU(scaled, d, p + i);
      } else {
        hn::StoreU(e, d, p + i);
        if constexpr (C::kDot) C::StorePairs(e, work.p_pairs[h] + i / 2);
      }
    }
    if constexpr (C::kBytes) {
      // Below `least` its inverse would be Inf.
      const Rounding by = RoundingOf(hn::GetLane(hn::MaxOfLanes(DI(), largest)), 32767.0f, 1e-33f);
      RoundAll(p, padded, by, work.p_rounded[h]);
      work.p_scale[h] = by.scale;
    }
    const float fade = hn::GetLane(FastExpVec(d, hn::Set(d, work.max[h] - max)));
    work.sum[h] = work.sum[h] * fade + hn::GetLane(hn::SumOfLanes(d, sum));
    if (fade != 1.0f) {
      for (size_t i = 0; i < dim; ++i) work.acc[h][i] *= fade;
    }
    work.max[h] = max;
  }
}

// The keys that are read after a piece's values: of the next piece, or of what is attended next.
template <class C>
struct NextKeys {
  const PagedHead<C>& head;
  int64_t begin;
  int64_t end;

  const typename C::Element* Strip(int64_t strip) const { return head.Keys(std::min(begin + strip, end - 1)); }
};

// acc += p V over positions [begin, begin + n), each element in position order, kVectors vectors of
// the head at a time. Meanwhile as many bytes of the next keys are asked for.
template <class C, int H, int kVectors>
HWY_INLINE void AddValues(const PagedHead<C>& head, int64_t begin, int64_t n, size_t at, const NextKeys<C>& next,
                          Work& work) {
  using T = typename C::Element;
  constexpr int64_t kInputs = PagedHead<C>::kInputs;
  const size_t stride = static_cast<size_t>(next.head.block_size);
  const DF d;
  VF acc[H][kVectors];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::LoadU(d, work.acc[h] + at + v * kLanes);
  }
  for (int64_t strip = 0; strip < n; strip += kStrip) {
    const T* values = head.Values(begin + strip) + at;
    const T* ask = next.Strip(strip);
    size_t row = at / kStrip;  // of keys
    const int64_t end = std::min(n, strip + kStrip);
    // Position i + j, of the values at `values`.
    const auto add = [&](int64_t i, size_t j) {
      for (int v = 0; v < kVectors; ++v) {
        const VF value = Line<T>::Load(d, values + v * kLanes, j);
        for (int h = 0; h < H; ++h) {
          acc[h][v] = hn::MulAdd(hn::Set(d, work.p[h][i + static_cast<int64_t>(j)]), value, acc[h][v]);
        }
      }
    };
    int64_t i = strip;
    for (; i + kInputs <= end; i += kInputs, values += head.dim, row += head.dim / kStrip) {
      for (size_t r = 0; r < kVectors * kLanes; r += kStrip) AskSecondLevel(ask + (row + r / kStrip) * stride);
      if constexpr (C::kDot) {
        for (int v = 0; v < kVectors; ++v) {
          for (int h = 0; h < H; ++h) {
            acc[h][v] = C::AddPairs(work.p_pairs[h][i / 2], values + v * kLanes, acc[h][v]);
          }
        }
      } else {
        for (size_t j = 0; j < static_cast<size_t>(kInputs); ++j) add(i, j);
      }
    }
    if (i < end) add(i, 0);  // whatever its neighbour past the context holds
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[h][v], d, work.acc[h] + at + v * kLanes);
  }
}

template <class C, int H>
void ValuePiece(const PagedHead<C>& head, int64_t begin, int64_t n, const NextKeys<C>& next, Work& work) {
  constexpr int kBudget = kLanes >= 16 ? 24 : 12;
  constexpr int kVectors = std::max(1, std::min(8, kBudget / H));
  size_t at = 0;
  for (; at + kVectors * kLanes <= head.dim; at += kVectors * kLanes) {
    AddValues<C, H, kVectors>(head, begin, n, at, next, work);
  }
  // A head of 64 in vectors of 16: one vector at a time would wait for each sum.
  constexpr int kFewer = std::min(4, kVectors);
  for (; at + kFewer * kLanes <= head.dim; at += kFewer * kLanes) {
    AddValues<C, H, kFewer>(head, begin, n, at, next, work);
  }
  for (; at + kLanes <= head.dim; at += kLanes) AddValues<C, H, 1>(head, begin, n, at, next, work);
  for (; at < head.dim; ++at) {  // the odd elements of a head that is no multiple of a vector
    for (int64_t i = 0; i < n; ++i) {
      const float value = NumberAt(head.Values(begin + i)[at], i % PagedHead<C>::kInputs);
      for (int h = 0; h < H; ++h) work.acc[h][at] += work.p[h][i] * value;
    }
  }
}

// n floats, an even number, as pairs of bfloat16.
HWY_INLINE void RoundPairs(const float* from, size_t n, uint32_t* to) {
  const DF d;
  HWY_ALIGN uint16_t rounded[kMaxHeadDim];
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreVec(d, hn::LoadU(d, from + i), rounded + i);
  if (i < n) StorePart(d, LoadPart(d, from + i, n - i), rounded + i, n - i);
  std::memcpy(to, rounded, n * sizeof(uint16_t));
}

// What is done over a cache of bytes instead (attention_int8-inl.h).
template <class C, int H>
void RoundQueries(size_t dim, float scale, Work& work);
template <class C, int H>
void ScoreBytes(const PagedHead<C>& head, int64_t begin, int64_t n, Work& work);
template <class C, int H>
void ByteValues(const PagedHead<C>& head, int64_t begin, int64_t n, const NextKeys<C>& next, Work& work);

// A is the element of q and out; `after`: the keys that are read after this.
template <class C, int H, typename A>
void AttendHeads(const PagedHead<C>& head, const A* q, int64_t context, float scale, const NextKeys<C>& after, A* out,
                 Work& work) {
  const DF d;
  for (int h = 0; h < H; ++h) {
    for (size_t i = 0; i < head.dim; ++i) work.q[h][i] = ToFloat(q[h * head.dim + i]);
    if constexpr (C::kDot) RoundPairs(work.q[h], head.dim, work.q_pairs[h]);
    std::memset(work.acc[h], 0, head.dim * sizeof(float));
    work.max[h] = -std::numeric_limits<float>::infinity();
    work.sum[h] = 0.0f;
  }
  if constexpr (C::kBytes) RoundQueries<C, H>(head.dim, scale, work);
  for (int64_t begin = 0; begin < context; begin += kPiece) {
    const int64_t n = std::min(kPiece, context - begin);
    const NextKeys<C> next_piece{head, begin + n, context};
    const NextKeys<C>& next = begin + n < context ? next_piece : after;
    if constexpr (C::kBytes) {
      ScoreBytes<C, H>(head, begin, n, work);
      SoftmaxPiece<C, H>(n, head.dim, work);
      ByteValues<C, H>(head, begin, n, next, work);
    } else {
      ScorePiece<C, H>(head, begin, n, scale, work);
      SoftmaxPiece<C, H>(n, head.dim, work);
      ValuePiece<C, H>(head, begin, n, next, work);
    }
  }
  for (int h = 0; h < H; ++h) {
    const VF sum = hn::Set(d, work.sum[h]);
    A* to = out + h * head.dim;
    size_t i = 0;
    for (; i + kLanes <= head.dim; i += kLanes) {
      StoreVec(d, hn::Div(hn::LoadU(d, work.acc[h] + i), sum), to + i);
    }
    if (i < head.dim) {
      const size_t n = head.dim - i;
      StorePart(d, hn::Div(LoadPart(d, work.acc[h] + i, n), sum), to + i, n);
    }
  }
}

// The cache as one item reads it.
template <class C>
PagedHead<C> HeadOf(const AttentionRows& a, int64_t token, int64_t kv) {
  using T = typename C::Element;
  const size_t dim = static_cast<size_t>(a.head_dim);
  const size_t scales = C::kBytes ? static_cast<size_t>(a.block_size) * sizeof(float) / sizeof(T) : 0;
  const size_t head_elements = scales + dim * static_cast<size_t>(a.block_size) / Line<T>::kInputs;
  const size_t first = static_cast<size_t>(kv) * head_elements + scales;
  return {static_cast<const T*>(a.k_cache) + first,
          static_cast<const T*>(a.v_cache) + first,
          a.block_tables + a.token_sequence[token] * a.block_tables_stride,
          head_elements * static_cast<size_t>(a.kv_heads),
          a.block_size,
          dim};
}

template <class C, typename A>
void AttentionItems(const AttentionRows& a, int64_t begin, int64_t end) {
  Work work;
  const int64_t group = a.heads / a.kv_heads;
  const auto context_of = [&](int64_t token) { return static_cast<int64_t>(a.positions[token]) + 1; };
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / a.kv_heads, kv = item % a.kv_heads;
    const PagedHead<C> head = HeadOf<C>(a, token, kv);
    const int64_t context = context_of(token);
    // Blocks are scattered, so that the hardware cannot foresee them. Of the last item there is none after it.
    const int64_t after = std::min(item + 1, end - 1);
    const PagedHead<C> after_head = HeadOf<C>(a, after / a.kv_heads, after % a.kv_heads);
    const NextKeys<C> next{after_head, 0, context_of(after / a.kv_heads)};
    const A* q = static_cast<const A*>(a.qkv) + token * a.qkv_stride + kv * group * a.head_dim;
    A* out = static_cast<A*>(a.out) + token * a.out_stride + kv * group * a.head_dim;
    for (int64_t g = 0; g < group;) {
      const int64_t h = std::min<int64_t>(kMaxHeads, group - g);
      const A* from = q + g * a.head_dim;
      A* to = out + g * a.head_dim;
      if (h == 4) AttendHeads<C, 4>(head, from, context, a.scale, next, to, work);
      if (h == 3) AttendHeads<C, 3>(head, from, context, a.scale, next, to, work);
      if (h == 2) AttendHeads<C, 2>(head, from, context, a.scale, next, to, work);
      if (h == 1) AttendHeads<C, 1>(head, from, context, a.scale, next, to, work);
      g += h;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
