// SPDX-License-Identifier: Apache-2.0
// q, k and v of a token in one pass: norm, rotary embedding, cache write. All float32 between the load
// and the one rounding at the store. No torch, no threads.
#include "kernels/qkv_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qkv_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/integers-inl.h"
#include "kernels/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// One head in float32, with room for a last whole vector.
struct Head {
  alignas(64) float v[kMaxHeadDim + kLanes];
};

template <typename T>
void StoreElements(const float* v, size_t n, T* out) {
  const DF d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreVec(d, hn::LoadU(d, v + i), out + i);
  if (i < n) StorePart(d, hn::LoadU(d, v + i), out + i, n - i);
}

// Rotation by plain products and sums (no fused multiply-add): the same bits for both pairings and
// on every target. Lanes past `half` compute on the spare room and are ignored.
void RotateHalfSplit(Head& head, const float* cos, const float* sin, size_t half) {
  const DF d;
  for (size_t i = 0; i < half; i += kLanes) {
    const size_t n = half - i < kLanes ? half - i : kLanes;
    const bool whole = n == kLanes;
    const VF c = whole ? hn::LoadU(d, cos + i) : LoadPart(d, cos + i, n);
    const VF s = whole ? hn::LoadU(d, sin + i) : LoadPart(d, sin + i, n);
    const VF a = hn::LoadU(d, head.v + i);
    const VF b = hn::LoadU(d, head.v + half + i);
    const VF ra = hn::Sub(hn::Mul(a, c), hn::Mul(b, s));
    const VF rb = hn::Add(hn::Mul(b, c), hn::Mul(a, s));
    if (whole) {
      hn::StoreU(ra, d, head.v + i);
      hn::StoreU(rb, d, head.v + half + i);
    } else {
      StorePart(d, ra, head.v + i, n);
      StorePart(d, rb, head.v + half + i, n);
    }
  }
}

void RotateInterleaved(Head& head, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const float a = head.v[2 * i], b = head.v[2 * i + 1];
    head.v[2 * i] = a * cos[i] - b * sin[i];
    head.v[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// Walks the heads of one of q, k, v: normalises and rotates each and hands it to `store(head, Head&)`.
template <typename T, class Store>
void ForEachHead(const QkvRows& a, const T* x, int64_t heads, int part, const float* cos,
                 const Store& store) {
  const size_t dim = static_cast<size_t>(a.head_dim);
  const size_t width = dim * static_cast<size_t>(heads);
  const bool normed = a.has_norm[part];
  const RowNorm& norm = a.norm[part];
  const size_t group = GroupWidth(norm.numbers, width);
  GroupScale scale;
  Head head;
  std::memset(head.v + dim, 0, kLanes * sizeof(float));
  for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
    const size_t begin = h * dim;
    if (!normed) {
      LoadElements(x + begin, dim, head.v);
    } else if (group >= dim) {
      if (begin % group == 0) scale = MeasureGroup(x + begin, group, norm.numbers, 0.0f);
      NormElements(x + begin, dim, norm, scale, begin, head.v);
    } else {
      for (size_t i = 0; i < dim; i += group) {
        scale = MeasureGroup(x + begin + i, group, norm.numbers, 0.0f);
        NormElements(x + begin + i, group, norm, scale, begin + i, head.v + i);
      }
    }
    if (cos != nullptr) {
      const size_t half = dim / 2;
      if (a.interleaved) {
        RotateInterleaved(head, cos, cos + half, half);
      } else {
        RotateHalfSplit(head, cos, cos + half, half);
      }
    }
    store(h, head);
  }
}

// Rounds a head to the cache's elements, and returns where in its block they begin: those of bytes come after scales.
template <typename C>
HWY_INLINE C* RoundHead(const Head& head, size_t dim, [[maybe_unused]] size_t block_size, [[maybe_unused]] size_t at,
                        C* block, C* row) {
  if constexpr (sizeof(C) == 1) {
    const size_t padded = (dim + kLanes - 1) / kLanes * kLanes;  // with zeros, as ForEachHead leaves them
    const Rounding by = RoundingOf(LargestBits(head.v, padded), 127.0f, 1e-30f);
    RoundAll(head.v, padded, by, row);
    std::memcpy(block + at * sizeof(float), &by.scale, sizeof(float));
    return block + block_size * sizeof(float);
  } else {
    StoreElements(head.v, dim, row);
    return block;
  }
}

// T is the projection's element, C the cache's.
template <typename T, typename C>
void QkvToken(const QkvRows& a, int64_t token) {
  const size_t dim = static_cast<size_t>(a.head_dim);
  T* q = static_cast<T*>(a.qkv) + token * a.qkv_stride;
  const T* k = q + a.heads * a.head_dim;
  const T* v = k + a.kv_heads * a.head_dim;
  const float* cos = a.rotary ? a.cos_sin + a.positions[token] * a.cos_sin_stride : nullptr;
  if (a.has_norm[0] || a.rotary) {
    ForEachHead(a, q, a.heads, 0, cos,
                [&](size_t h, Head& head) { StoreElements(head.v, dim, q + h * dim); });
  }
  const int32_t slot = a.slots[token];
  if (slot < 0) return;
  const int64_t block = slot / a.block_size, offset = slot % a.block_size;
  const size_t stride = static_cast<size_t>(a.block_size);
  const size_t head_elements = stride * (dim + (sizeof(C) == 1 ? sizeof(float) : 0));
  const size_t first = static_cast<size_t>(block * a.kv_heads) * head_elements;
  C* k_block = static_cast<C*>(a.k_cache) + first;
  C* v_block = static_cast<C*>(a.v_cache) + first;
  C row[kMaxHeadDim];
  const size_t at = static_cast<size_t>(offset);
  ForEachHead(a, k, a.kv_heads, 1, cos, [&](size_t h, Head& head) {
    C* to = RoundHead(head, dim, stride, at, k_block + h * head_elements, row);
    if constexpr (sizeof(C) == sizeof(float)) {
      for (size_t i = 0; i < dim; ++i) to[i * stride + at] = row[i];
    } else {
      for (size_t i = 0; i < dim; i += 2) std::memcpy(to + i * stride + 2 * at, row + i, 2 * sizeof(C));
    }
  });
  ForEachHead(a, v, a.kv_heads, 2, nullptr, [&](size_t h, Head& head) {
    if constexpr (sizeof(C) == sizeof(float)) {
      StoreElements(head.v, dim, v_block + h * head_elements + at * dim);
    } else {
      C* to = RoundHead(head, dim, stride, at, v_block + h * head_elements, row);
      for (size_t i = 0; i < dim; ++i) to[(at / 2 * dim + i) * 2 + at % 2] = row[i];
    }
  });
}

// Asks for the lines that a token's keys and values are written to, where those of the token before it are others: a
// sequence's last block is not in the cache, and each of a key's dimensions (or pairs of them) is on a line of its own.
void AskForSlot(const QkvRows& a, int64_t token) {
  constexpr int32_t kLine = 16;  // positions of a key's line
  const int32_t slot = a.slots[token];
  if (slot < 0 || slot / kLine == a.slots[token - 1] / kLine) return;
  const bool single = a.cache_type == RowType::kFloat32 && !a.int8_cache;
  const int64_t element = a.int8_cache ? 1 : single ? 4 : 2, numbers = single ? 1 : 2;
  const int64_t scales = a.int8_cache ? 4 * a.block_size : 0;  // bytes before a head's numbers
  const int64_t head_bytes = scales + a.head_dim * a.block_size * element;
  const int64_t first = slot / a.block_size * a.kv_heads * head_bytes + scales, offset = slot % a.block_size;
  const char* keys = static_cast<const char*>(a.k_cache) + first + offset * element * numbers;
  const char* values = static_cast<const char*>(a.v_cache) + first + offset / numbers * numbers * a.head_dim * element;
  for (int64_t h = 0; h < a.kv_heads; ++h, keys += head_bytes, values += head_bytes) {
    for (int64_t i = 0; i < a.head_dim; i += numbers) __builtin_prefetch(keys + i * a.block_size * element, 1);
    for (int64_t at = 0; at < a.head_dim * numbers * element; at += 64) __builtin_prefetch(values + at, 1);
  }
}

void QkvRowsTarget(const QkvRows& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    if (t + 1 < end) AskForSlot(args, t + 1);
    if (args.int8_cache) {
      QkvToken<float, int8_t>(args, t);
    } else if (args.type != RowType::kFloat32) {
      QkvToken<uint16_t, uint16_t>(args, t);
    } else if (args.cache_type != RowType::kFloat32) {
      QkvToken<float, uint16_t>(args, t);
    } else {
      QkvToken<float, float>(args, t);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {
HWY_EXPORT(QkvRowsTarget);
void QkvRowsCpu(const QkvRows& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(QkvRowsTarget)(args, begin, end);
}
}  // namespace normserve::kernels
#endif
