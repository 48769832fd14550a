// SPDX-License-Identifier: Apache-2.0
// Attention over an int8 cache: what attention-inl.h does with numbers, by whole ones. Queries and weights are rounded
// to 16 bits, each head's by a scale of its own (weights by one per piece), and their products with the cache's bytes
// are summed exactly: over a head's dimensions for the scores, over a piece for the values. So what a target is
// changes nothing but the float steps between. No torch, no threads.
#if defined(NORMSERVE_KERNELS_ATTENTION_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMSERVE_KERNELS_ATTENTION_INT8_INL_H_
#undef NORMSERVE_KERNELS_ATTENTION_INT8_INL_H_
#else
#define NORMSERVE_KERNELS_ATTENTION_INT8_INL_H_
#endif

#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// The policies of this header have, beside what those of attention-inl.h have, MulPairsAdd of integers-inl.h. Their
// element is a pair of bytes; PagedHead points past the scales of block 0 (qkv_rows.h).
struct Int8Cache {
  using Element = uint16_t;
  static constexpr bool kDot = false, kBytes = true;
  static HWY_INLINE VI AddPairs(VS a, VS b, VI sum, VI& odd) { return MulPairsAdd(a, b, sum, odd); }
};

// A piece's sums fit: 32767 * 127 * 512 < 2^31. Those of a score: with fewer bits from dimension 514 on.
static_assert(kPiece <= 512);
HWY_INLINE constexpr float MostOfQuery(size_t dim) { return dim <= 512 ? 32767.0f : 16383.0f; }
static_assert(int64_t{16383} * 127 * kMaxHeadDim < int64_t{1} << 31);

// Scales of keys or values from a position on, to its strip's end.
template <class C>
HWY_INLINE const float* ScalesOf(const PagedHead<C>& head, const uint16_t* cache, int64_t position) {
  const uint16_t* block = cache + static_cast<size_t>(head.table[position / head.block_size]) * head.block_elements;
  return reinterpret_cast<const float*>(block) - head.block_size + position % head.block_size;
}
// Of a block's bytes, scales first, the share of a strip among the block's, for prefetching.
template <class C>
HWY_INLINE const char* ShareOf(const PagedHead<C>& head, const uint16_t* cache, int64_t position) {
  const int64_t strip = position % head.block_size / kStrip;
  return reinterpret_cast<const char*>(ScalesOf(head, cache, position / head.block_size * head.block_size)) +
         static_cast<size_t>(strip) * kStrip * (head.dim + sizeof(float));
}

template <class C, int H>
void RoundQueries(size_t dim, float scale, Work& work) {
  for (int h = 0; h < H; ++h) {
    const size_t padded = (dim + kLanes - 1) / kLanes * kLanes;
    for (size_t i = dim; i < padded; ++i) work.q[h][i] = 0.0f;
    const Rounding by = RoundingOf(LargestBits(work.q[h], padded), MostOfQuery(dim), 1e-30f);
    RoundAll(work.q[h], padded, by, work.q_rounded[h]);
    work.q_scale[h] = by.scale * scale;
  }
}

struct KeyStrip {
  const int8_t* keys;
  const float* scales;
  const char* ask;  // what is asked for meanwhile: the share of the same positions' values
};

// The keys of two neighbouring dimensions.
template <class C, int H, int kStrips>
HWY_INLINE void ScoreRow(const KeyStrip (&strips)[kStrips], size_t offset, size_t row, const Work& work,
                         VI (&sum)[H][kStrips][kStripVectors], VI (&odd)[H][kStrips][kStripVectors]) {
  for (int s = 0; s < kStrips; ++s) {
    for (int v = 0; v < kStripVectors; ++v) {
      const VS keys = WidenPairs(strips[s].keys + offset + 2 * v * kLanes);
      for (int h = 0; h < H; ++h) {
        sum[h][s][v] = C::AddPairs(SetPair(work.q_rounded[h] + 2 * row), keys, sum[h][s][v], odd[h][s][v]);
      }
    }
  }
}

// Slots past the context give garbage lanes, as their scales are, which SoftmaxPiece drops.
template <class C, int H, int kStrips>
HWY_INLINE void ScoreByteStrips(const PagedHead<C>& head, int64_t position, Work& work, size_t at) {
  const DF d;
  KeyStrip strips[kStrips];
  VI sum[H][kStrips][kStripVectors], odd[H][kStrips][kStripVectors];
  for (int s = 0; s < kStrips; ++s) {
    const int64_t first = position + s * kStrip;
    strips[s] = {reinterpret_cast<const int8_t*>(head.Keys(first)), ScalesOf(head, head.keys, first),
                 ShareOf(head, head.values, first)};
    for (int h = 0; h < H; ++h) {
      for (int v = 0; v < kStripVectors; ++v) sum[h][s][v] = odd[h][s][v] = hn::Zero(DI());
    }
  }
  const size_t stride = 2 * static_cast<size_t>(head.block_size), rows = head.KeyRows();
  size_t row = 0;
  for (; row + 2 <= rows; row += 2) {
    for (int s = 0; s < kStrips; ++s) AskSecondLevel(strips[s].ask + row * 2 * kStrip);
    ScoreRow<C, H, kStrips>(strips, row * stride, row, work, sum, odd);
    ScoreRow<C, H, kStrips>(strips, (row + 1) * stride, row + 1, work, sum, odd);
  }
  if (row < rows) ScoreRow<C, H, kStrips>(strips, row * stride, row, work, sum, odd);
  for (int s = 0; s < kStrips; ++s) {
    AskSecondLevel(strips[s].ask + rows * 2 * kStrip);
    for (int v = 0; v < kStripVectors; ++v) {
      const VF scale = hn::LoadU(d, strips[s].scales + v * kLanes);
      for (int h = 0; h < H; ++h) {
        const VF whole = hn::ConvertTo(d, WholeSum(sum[h][s][v], odd[h][s][v]));
        const VF score = hn::Mul(whole, hn::Mul(scale, hn::Set(d, work.q_scale[h])));
        hn::StoreU(score, d, work.p[h] + at + s * kStrip + v * kLanes);
      }
    }
  }
}

// Scores, and a copy of the values' scales for SoftmaxPiece: with zeros past the context, whatever is there.
template <class C, int H>
void ScoreBytes(const PagedHead<C>& head, int64_t begin, int64_t n, Work& work) {
  constexpr int kAtOnce = StripsAtOnce<H>();
  int64_t at = 0;
  for (; at + kAtOnce * kStrip <= n; at += kAtOnce * kStrip) {
    ScoreByteStrips<C, H, kAtOnce>(head, begin + at, work, static_cast<size_t>(at));
  }
  for (; at < n; at += kStrip) ScoreByteStrips<C, H, 1>(head, begin + at, work, static_cast<size_t>(at));
  for (at = 0; at < n; at += kStrip) {
    std::memcpy(work.value_scales + at, ScalesOf(head, head.values, begin + at), kStrip * sizeof(float));
  }
  for (int64_t i = n; i < at; ++i) work.value_scales[i] = 0.0f;
}

// acc += p V over positions [begin, begin + n). Weights past them are 0, so that the neighbour of an odd last one
// adds nothing.
template <class C, int H, int kVectors>
HWY_INLINE void AddBytes(const PagedHead<C>& head, int64_t begin, int64_t n, size_t at, const NextKeys<C>& next,
                         Work& work) {
  const DF d;
  VI sum[H][kVectors], odd[H][kVectors];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) sum[h][v] = odd[h][v] = hn::Zero(DI());
  }
  const size_t stride = 2 * head.dim;
  for (int64_t strip = 0; strip < n; strip += kStrip) {
    const int8_t* values = reinterpret_cast<const int8_t*>(head.Values(begin + strip)) + 2 * at;
    const char* ask = ShareOf(next.head, next.head.keys, std::min(next.begin + strip, next.end - 1));
    if (at == 0) AskSecondLevel(ask + kStrip * head.dim);
    ask += 2 * at;
    const int64_t end = std::min(n, strip + kStrip);
    for (int64_t i = strip; i < end; i += 2, values += stride, ask += stride) {
      for (size_t byte = 0; byte < 2 * kVectors * kLanes; byte += 64) AskSecondLevel(ask + byte);
      for (int v = 0; v < kVectors; ++v) {
        const VS pairs = WidenPairs(values + 2 * v * kLanes);
        for (int h = 0; h < H; ++h) {
          sum[h][v] = C::AddPairs(SetPair(work.p_rounded[h] + i), pairs, sum[h][v], odd[h][v]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    const VF scale = hn::Set(d, work.p_scale[h]);
    for (int v = 0; v < kVectors; ++v) {
      float* to = work.acc[h] + at + v * kLanes;
      hn::StoreU(hn::MulAdd(hn::ConvertTo(d, WholeSum(sum[h][v], odd[h][v])), scale, hn::LoadU(d, to)), d, to);
    }
  }
}

template <class C, int H>
void ByteValues(const PagedHead<C>& head, int64_t begin, int64_t n, const NextKeys<C>& next, Work& work) {
  constexpr int kBudget = kLanes >= 16 ? 24 : 12;
  constexpr int kVectors = std::max(1, std::min(8, kBudget / H));
  size_t at = 0;
  for (; at + kVectors * kLanes <= head.dim; at += kVectors * kLanes) {
    AddBytes<C, H, kVectors>(head, begin, n, at, next, work);
  }
  constexpr int kFewer = std::min(4, kVectors);
  for (; at + kFewer * kLanes <= head.dim; at += kFewer * kLanes) {
    AddBytes<C, H, kFewer>(head, begin, n, at, next, work);
  }
  for (; at + kLanes <= head.dim; at += kLanes) AddBytes<C, H, 1>(head, begin, n, at, next, work);
  for (; at < head.dim; ++at) {  // the odd elements of a head that is no multiple of a vector
    int32_t sum[H] = {};
    for (int64_t i = 0; i < n; ++i) {
      const auto* pairs = reinterpret_cast<const int8_t*>(head.Values(begin + i) + at);
      for (int h = 0; h < H; ++h) sum[h] += work.p_rounded[h][i] * pairs[i % 2];
    }
    for (int h = 0; h < H; ++h) work.acc[h][at] += static_cast<float>(sum[h]) * work.p_scale[h];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
