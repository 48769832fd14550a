// SPDX-License-Identifier: Apache-2.0
// Paged causal attention: each query row by itself, so that neither batch, chunk nor block size can
// change a bit. Softmax runs online over pieces of 512 positions counted from position 0: the working
// set is fixed whatever the context, and nothing is allocated. No torch, no threads.
#include "kernels/attention_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

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

// One (sequence, kv head): where its keys and values are.
template <typename T>
struct PagedHead {
  const T* keys;    // of block 0
  const T* values;  // of block 0
  const int32_t* table;
  size_t block_elements;  // from one block to the next
  int64_t block_size;
  size_t dim;

  const T* Keys(int64_t position) const {
    return keys + static_cast<size_t>(table[position / block_size]) * block_elements +
           position % block_size;
  }
  const T* Values(int64_t position) const {
    return values + static_cast<size_t>(table[position / block_size]) * block_elements +
           static_cast<size_t>(position % block_size) * dim;
  }
};

struct Work {
  alignas(64) float q[kMaxHeads][kMaxHeadDim];
  alignas(64) float p[kMaxHeads][kPiece];  // scores, then weights
  alignas(64) float acc[kMaxHeads][kMaxHeadDim];
  float max[kMaxHeads];
  float sum[kMaxHeads];
};

// Scores of H heads at kStrips strips that begin at the given keys. Each score is one chain over the
// head's dimensions in order. Slots past the context give garbage lanes, which the caller drops.
// `next` is what is read after this: blocks are scattered, so the hardware cannot foresee them.
template <int H, int kStrips, typename T>
HWY_INLINE void ScoreStrips(const T* const* keys, const T* const* next, size_t stride, size_t dim,
                            float scale, Work& work, size_t at) {
  const DF d;
  VF acc[H][kStrips][kStripVectors];
  for (int h = 0; h < H; ++h) {
    for (int s = 0; s < kStrips; ++s) {
      for (int v = 0; v < kStripVectors; ++v) acc[h][s][v] = hn::Zero(d);
    }
  }
  for (size_t i = 0; i < dim; ++i) {
    for (int s = 0; s < kStrips; ++s) {
      hwy::Prefetch(next[s] + i * stride);
      for (int v = 0; v < kStripVectors; ++v) {
        const VF k = LoadVec(d, keys[s] + i * stride + v * kLanes);
        for (int h = 0; h < H; ++h) {
          acc[h][s][v] = hn::MulAdd(hn::Set(d, work.q[h][i]), k, acc[h][s][v]);
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
constexpr int StripsAtOnce() {
  constexpr int kBudget = kLanes >= 16 ? 16 : 8;
  return std::max(1, std::min(4, kBudget / (H * kStripVectors)));
}

template <int H, typename T>
void ScorePiece(const PagedHead<T>& head, int64_t begin, int64_t n, float scale, Work& work) {
  constexpr int kAtOnce = StripsAtOnce<H>();
  const size_t stride = static_cast<size_t>(head.block_size);
  const auto at_or_last = [&](int64_t i) { return head.Keys(begin + std::min(i, n - 1)); };
  int64_t at = 0;
  for (; at + kAtOnce * kStrip <= n; at += kAtOnce * kStrip) {
    const T* keys[kAtOnce];
    const T* next[kAtOnce];
    for (int s = 0; s < kAtOnce; ++s) {
      keys[s] = head.Keys(begin + at + s * kStrip);
      next[s] = at_or_last(at + (kAtOnce + s) * kStrip);
    }
    ScoreStrips<H, kAtOnce>(keys, next, stride, head.dim, scale, work, static_cast<size_t>(at));
  }
  for (; at < n; at += kStrip) {
    const T* keys[1] = {head.Keys(begin + at)};
    const T* next[1] = {at_or_last(at + kStrip)};
    ScoreStrips<H, 1>(keys, next, stride, head.dim, scale, work, static_cast<size_t>(at));
  }
}

// Turns a piece's scores into weights relative to the running maximum, and rescales what was summed
// under the old one. A NaN score makes its weight, hence the whole row, NaN.
template <int H>
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
    for (size_t i = 0; i < padded; i += kLanes) {
      const VF e = ExpVec(d, hn::Sub(hn::LoadU(d, p + i), shift));
      hn::StoreU(e, d, p + i);
      sum = hn::Add(sum, e);
    }
    const float fade = hn::GetLane(ExpVec(d, hn::Set(d, work.max[h] - max)));
    work.sum[h] = work.sum[h] * fade + hn::GetLane(hn::SumOfLanes(d, sum));
    if (fade != 1.0f) {
      for (size_t i = 0; i < dim; ++i) work.acc[h][i] *= fade;
    }
    work.max[h] = max;
  }
}

// acc += p V over positions [begin, begin + n), each element in position order, kVectors vectors of
// the head at a time.
template <int H, int kVectors, typename T>
HWY_INLINE void AddValues(const PagedHead<T>& head, int64_t begin, int64_t n, size_t at,
                          Work& work) {
  const DF d;
  VF acc[H][kVectors];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::LoadU(d, work.acc[h] + at + v * kLanes);
  }
  for (int64_t strip = 0; strip < n; strip += kStrip) {
    const T* values = head.Values(begin + strip) + at;
    const T* next = head.Values(begin + std::min(strip + kStrip, n - 1)) + at;
    const int64_t end = std::min(n, strip + kStrip);
    for (int64_t i = strip; i < end; ++i, values += head.dim, next += head.dim) {
      for (size_t ahead = 0; ahead < kVectors * kLanes * sizeof(T); ahead += 64) {
        hwy::Prefetch(reinterpret_cast<const char*>(next) + ahead);
      }
      for (int v = 0; v < kVectors; ++v) {
        const VF value = LoadVec(d, values + v * kLanes);
        for (int h = 0; h < H; ++h) {
          acc[h][v] = hn::MulAdd(hn::Set(d, work.p[h][i]), value, acc[h][v]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[h][v], d, work.acc[h] + at + v * kLanes);
  }
}

template <int H, typename T>
void ValuePiece(const PagedHead<T>& head, int64_t begin, int64_t n, Work& work) {
  constexpr int kBudget = kLanes >= 16 ? 24 : 12;
  constexpr int kVectors = std::max(1, std::min(8, kBudget / H));
  size_t at = 0;
  for (; at + kVectors * kLanes <= head.dim; at += kVectors * kLanes) {
    AddValues<H, kVectors>(head, begin, n, at, work);
  }
  // A head of 64 in vectors of 16: one vector at a time would wait for each sum.
  constexpr int kFewer = std::min(4, kVectors);
  for (; at + kFewer * kLanes <= head.dim; at += kFewer * kLanes) {
    AddValues<H, kFewer>(head, begin, n, at, work);
  }
  for (; at + kLanes <= head.dim; at += kLanes) AddValues<H, 1>(head, begin, n, at, work);
  for (; at < head.dim; ++at) {  // the odd elements of a head that is no multiple of a vector
    for (int64_t i = 0; i < n; ++i) {
      const float value = ToFloat(head.Values(begin + i)[at]);
      for (int h = 0; h < H; ++h) work.acc[h][at] += work.p[h][i] * value;
    }
  }
}

// T is the cache's element, A that of q and out.
template <int H, typename T, typename A>
void AttendHeads(const PagedHead<T>& head, const A* q, int64_t context, float scale, A* out,
                 Work& work) {
  const DF d;
  for (int h = 0; h < H; ++h) {
    for (size_t i = 0; i < head.dim; ++i) work.q[h][i] = ToFloat(q[h * head.dim + i]);
    std::memset(work.acc[h], 0, head.dim * sizeof(float));
    work.max[h] = -std::numeric_limits<float>::infinity();
    work.sum[h] = 0.0f;
  }
  for (int64_t begin = 0; begin < context; begin += kPiece) {
    const int64_t n = std::min(kPiece, context - begin);
    ScorePiece<H>(head, begin, n, scale, work);
    SoftmaxPiece<H>(n, head.dim, work);
    ValuePiece<H>(head, begin, n, work);
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

template <typename A, typename T>
void AttentionItems(const AttentionRows& a, int64_t begin, int64_t end) {
  Work work;
  const size_t dim = static_cast<size_t>(a.head_dim);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t token = item / a.kv_heads, kv = item % a.kv_heads;
    const size_t head_elements = dim * static_cast<size_t>(a.block_size);
    const PagedHead<T> head{
        static_cast<const T*>(a.k_cache) + static_cast<size_t>(kv) * head_elements,
        static_cast<const T*>(a.v_cache) + static_cast<size_t>(kv) * head_elements,
        a.block_tables + a.token_sequence[token] * a.block_tables_stride,
        head_elements * static_cast<size_t>(a.kv_heads),
        a.block_size,
        dim};
    const int64_t context = static_cast<int64_t>(a.positions[token]) + 1;
    const A* q = static_cast<const A*>(a.qkv) + token * a.qkv_stride + kv * group * a.head_dim;
    A* out = static_cast<A*>(a.out) + token * a.out_stride + kv * group * a.head_dim;
    for (int64_t g = 0; g < group;) {
      const int64_t h = std::min<int64_t>(kMaxHeads, group - g);
      const A* from = q + g * a.head_dim;
      A* to = out + g * a.head_dim;
      if (h == 4) AttendHeads<4>(head, from, context, a.scale, to, work);
      if (h == 3) AttendHeads<3>(head, from, context, a.scale, to, work);
      if (h == 2) AttendHeads<2>(head, from, context, a.scale, to, work);
      if (h == 1) AttendHeads<1>(head, from, context, a.scale, to, work);
      g += h;
    }
  }
}

void AttentionRowsTarget(const AttentionRows& args, int64_t begin, int64_t end) {
  if (args.type != RowType::kFloat32) return AttentionItems<uint16_t, uint16_t>(args, begin, end);
  if (args.cache_type != RowType::kFloat32) return AttentionItems<float, uint16_t>(args, begin, end);
  AttentionItems<float, float>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {
HWY_EXPORT(AttentionRowsTarget);
void AttentionRowsCpu(const AttentionRows& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(AttentionRowsTarget)(args, begin, end);
}
}  // namespace normserve::kernels
#endif
