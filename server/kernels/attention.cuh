// SPDX-License-Identifier: Apache-2.0
// Paged causal attention. A context is cut into splits of 512 positions counted from position 0. A
// row (one query head of one token) takes each split by itself and merges the splits in order, so
// its bits depend on its own context alone: not on the rows that share its block, nor on whether
// the splits are merged by that block or, through scratch memory, by a second kernel. No tensor
// cores.
#pragma once

#include "kernels/attention_plan.h"
#include "kernels/vectors.cuh"

namespace normserve::kernels {

constexpr int kStrip = 16;  // positions that never straddle two blocks of the cache
constexpr int kStrips = kSplit / kStrip;

// Two stretches of a softmax made one: what their sums are multiplied by under the common maximum.
struct SplitMerge {
  float max, before, after;

  __device__ SplitMerge(float max_before, float max_after)
      : max(fmaxf(max_before, max_after)), before(expf(max_before - max)),
        after(expf(max_after - max)) {}
  // Spelled out, so that every kernel rounds alike.
  __device__ float operator()(float sum_before, float sum_after) const {
    return fmaf(sum_before, before, __fmul_rn(sum_after, after));
  }
};

// Sums V values over the lanes whose key vectors cover the same positions: those that differ in the
// bits from kLowest up. The lane with upper bits i gets the sum of acc[i], twice over.
template <int V, int kLowest>
__device__ inline float SumAndScatter(float (&acc)[V]) {
  const int lane = threadIdx.x % 32;
  int bit = 16;
#pragma unroll
  for (int n = V / 2; n > 0; n /= 2, bit /= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float kept = upper ? acc[i + n] : acc[i], sent = upper ? acc[i] : acc[i + n];
      acc[i] = kept + __shfl_xor_sync(kAllLanes, sent, bit);
    }
  }
  return acc[0] + __shfl_xor_sync(kAllLanes, acc[0], kLowest);
}

// What a block knows of its R rows and of the split at hand; in shared memory.
template <int R>
struct alignas(16) AttentionShared {
  int context[R];         // positions that the row sees; 0: no such row in this turn
  int n[R];               // of which in this split
  float max[R], sum[R];   // of all splits so far
  float before[R], after[R];  // how this split is merged with those before
  int64_t keys[kStrips], values[kStrips];  // where a strip begins in the caches
};

// One block's work on R rows. A is the type of q and out, T that of the caches.
template <int R, typename A, typename T>
struct AttentionBlock {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  const AttentionRows& a;
  const AttentionPlan& plan;
  AttentionShared<R>& shared;
  float* q;      // [R, head_dim]
  float* p;      // [R, kSplit] scores, then weights; then the partial sums of values
  float* total;  // [R, head_dim] of all splits so far
  int64_t first_token;
  int kv_head, first_head;  // the head within the kv head's group
  int dim;

  __device__ int64_t Token(int r) const { return first_token + r / plan.heads; }
  __device__ int64_t Head(int r) const {
    return kv_head * (a.heads / a.kv_heads) + first_head + r % plan.heads;
  }

  // The rows of tokens [begin, end), all of one sequence; those of other tokens sit this turn out.
  __device__ void SetRows(int64_t begin, int64_t end) const {
    const int r = threadIdx.x;
    if (r < R) {
      const int64_t token = Token(r);
      const bool here = r < plan.heads * plan.tokens && token >= begin && token < end &&
                        first_head + r % plan.heads < a.heads / a.kv_heads;
      shared.context[r] = here ? a.positions[token] + 1 : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < R * dim; i += kAttentionThreads) {
      const int row = i / dim;
      const int64_t at = Token(row) * a.qkv_stride + Head(row) * dim + i % dim;
      q[i] = shared.context[row] > 0 ? ToFloat(static_cast<const A*>(a.qkv)[at]) : 0.0f;
    }
  }

  __device__ void SetSplit(int64_t sequence, int begin, int n) const {
    const int i = threadIdx.x;
    if (i < R) {
      const int left = shared.context[i] - begin;
      shared.n[i] = left < 0 ? 0 : left < kSplit ? left : kSplit;
    }
    if (i < (n + kStrip - 1) / kStrip) {
      const int64_t position = begin + i * kStrip, size = a.block_size;
      const int64_t block = a.block_tables[sequence * a.block_tables_stride + position / size];
      const int64_t base = (block * a.kv_heads + kv_head) * dim * size;
      shared.keys[i] = base + position % size;
      shared.values[i] = base + position % size * dim;
    }
    __syncthreads();
  }

  // p = scale * q K. A warp takes a strip: each lane a vector of positions at every kRows-th
  // dimension. Positions past a row's context give garbage, which the softmax drops.
  __device__ void Scores(int n) const {
    constexpr int kVectors = kStrip / kVector, kRows = 32 / kVectors, kBatch = 4;
    const int lane = threadIdx.x % 32, vector = lane % kVectors;
    for (int strip = threadIdx.x / 32; strip * kStrip < n; strip += kAttentionThreads / 32) {
      const T* keys = static_cast<const T*>(a.k_cache) + shared.keys[strip] + vector * kVector;
      float acc[R][kVector];
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < kVector; ++j) acc[r][j] = 0.0f;
      }
      int d = lane / kVectors;
      for (; d + (kBatch - 1) * kRows < dim; d += kBatch * kRows) {
        Vector<T, kVector> k[kBatch];
        for (int b = 0; b < kBatch; ++b) {
          k[b] = LoadVector<kVector>(keys + (d + b * kRows) * a.block_size);
        }
        for (int b = 0; b < kBatch; ++b) AddProducts(q + d + b * kRows, dim, k[b], acc);
      }
      for (; d < dim; d += kRows) {
        AddProducts(q + d, dim, LoadVector<kVector>(keys + d * a.block_size), acc);
      }
      const int at = strip * kStrip + vector * kVector + lane / (2 * kVectors);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float sum = SumAndScatter<kVector, kVectors>(acc[r]);
        if ((lane & kVectors) == 0) p[r * kSplit + at] = sum * a.scale;
      }
    }
    __syncthreads();
  }

  // Scores to weights under the split's own maximum, a warp per row, and how the split is merged
  // with those before it. A NaN score makes its weight, hence the whole row, NaN.
  __device__ void Softmax(int split) const {
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < R; r += kAttentionThreads / 32) {
      const int n = shared.n[r];
      if (n == 0) continue;
      float* row = p + r * kSplit;
      float max = -INFINITY, sum = 0.0f;
      for (int i = lane; i < n; i += 32) max = fmaxf(max, row[i]);
      max = WarpMax(max);
      for (int i = lane; i < n; i += 32) {
        const float e = expf(row[i] - max);
        row[i] = e;
        sum += e;
      }
      sum = WarpSum(sum);
      if (lane != 0) continue;
      if (ThroughScratch(r)) {
        float* stats = plan.stats + 2 * Partial(r, split);
        stats[0] = max;
        stats[1] = sum;
      } else if (split == 0) {
        shared.max[r] = max;
        shared.sum[r] = sum;
      } else {
        const SplitMerge merge(shared.max[r], max);
        shared.max[r] = merge.max;
        shared.sum[r] = merge(shared.sum[r], sum);
        shared.before[r] = merge.before;
        shared.after[r] = merge.after;
      }
    }
    __syncthreads();
  }

  // Weights times values, V elements of a head per thread: as many threads as a head needs take a
  // position, the others the next ones, and a tree adds them up.
  template <int V>
  __device__ void Values(int split, int n) const {
    constexpr int kHalf = kAttentionThreads / 2;
    const int columns = dim / V;
    int width = 1;  // threads per position, a power of two
    while (width < columns && width < kAttentionThreads) width *= 2;
    const int step = kAttentionThreads / width, place = threadIdx.x / width;
    for (int begin = 0; begin < columns; begin += width) {
      const int column = begin + threadIdx.x % width;
      const bool live = column < columns;
      float acc[R][V];
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < V; ++j) acc[r][j] = 0.0f;
      }
      if (live) AddValues<V>(column * V, place, step, n, acc);
      for (int half = step / 2; half > 0; half /= 2) {  // one pass of columns only if there are any
        __syncthreads();
        float* to = p + threadIdx.x % (half * width);
        if (place >= half && place < 2 * half) {
          ForEachSum<V>(acc, [&](int i, float& v) { to[i * kHalf] = v; });
        }
        __syncthreads();
        if (place < half) ForEachSum<V>(acc, [&](int i, float& v) { v += to[i * kHalf]; });
      }
      if (!live || place != 0) continue;
#pragma unroll
      for (int r = 0; r < R; ++r) Finish<V>(r, split, column * V, acc[r]);
    }
    __syncthreads();
  }

 private:
  template <int V, class F>
  __device__ static void ForEachSum(float (&acc)[R][V], const F& f) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int j = 0; j < V; ++j) f(r * V + j, acc[r][j]);
    }
  }

  // acc[r][j] += weights[r * stride] * x[j].
  template <int V>
  __device__ static void AddProducts(const float* weights, int stride,
                                     const Vector<T, V>& x, float (&acc)[R][V]) {
    float v[V];
    for (int j = 0; j < V; ++j) v[j] = ToFloat(x.at[j]);
    for (int r = 0; r < R; ++r) {
      const float weight = weights[r * stride];
      for (int j = 0; j < V; ++j) acc[r][j] = fmaf(weight, v[j], acc[r][j]);
    }
  }

  // Positions place, place + step, ... of the split. Up to the shortest of the rows none has to be
  // left out; past it a row's weight must not even meet a value that it may not see.
  template <int V>
  __device__ void AddValues(int element, int place, int step, int n, float (&acc)[R][V]) const {
    constexpr int kBatch = 4;
    const T* values = static_cast<const T*>(a.v_cache) + element;
    const auto load = [&](int i) {
      return LoadVector<V>(values + shared.values[i / kStrip] + i % kStrip * dim);
    };
    int shortest = n;
    for (int r = 0; r < R; ++r) {
      if (shared.n[r] > 0 && shared.n[r] < shortest) shortest = shared.n[r];
    }
    int i = place;
    for (; i + (kBatch - 1) * step < shortest; i += kBatch * step) {
      Vector<T, V> v[kBatch];
      for (int b = 0; b < kBatch; ++b) v[b] = load(i + b * step);
      for (int b = 0; b < kBatch; ++b) AddProducts(p + i + b * step, kSplit, v[b], acc);
    }
    for (; i < shortest; i += step) AddProducts(p + i, kSplit, load(i), acc);
    for (; i < n; i += step) {
      const Vector<T, V> v = load(i);
      for (int r = 0; r < R; ++r) {
        if (i >= shared.n[r]) continue;
        const float weight = p[r * kSplit + i];
        for (int j = 0; j < V; ++j) acc[r][j] = fmaf(weight, ToFloat(v.at[j]), acc[r][j]);
      }
    }
  }

  // V elements of a row's split: to the scratch memory, or to the total and, at the last, to out.
  template <int V>
  __device__ void Finish(int r, int split, int element, const float (&acc)[V]) const {
    if (shared.n[r] == 0) return;
    if (ThroughScratch(r)) {
      float* to = plan.partial + Partial(r, split) * dim + element;
      for (int j = 0; j < V; ++j) to[j] = acc[j];
      return;
    }
    const bool last = shared.context[r] <= (split + 1) * kSplit;
    A* out = static_cast<A*>(a.out) + Token(r) * a.out_stride + Head(r) * dim + element;
    for (int j = 0; j < V; ++j) {
      float& sum = total[r * dim + element + j];
      const float before = shared.before[r], after = shared.after[r];
      const float v = split == 0 ? acc[j] : fmaf(sum, before, __fmul_rn(acc[j], after));
      if (last) {
        out[j] = FromFloat<A>(v / shared.sum[r]);
      } else {
        sum = v;
      }
    }
  }

  __device__ bool ThroughScratch(int r) const {
    return plan.partial != nullptr && shared.context[r] > kSplit;
  }
  __device__ int64_t Partial(int r, int split) const {
    return (Token(r) * a.heads + Head(r)) * plan.splits + split;
  }
};

// Grid [tokens / plan.tokens, kv_heads * parts, splits if they go through scratch memory]. Dynamic
// shared memory: AttentionShared<R>, then R * (2 head_dim + kSplit) floats. `wide`: values are
// loaded 16 bytes at a time.
template <int R, typename A, typename T>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionKernel(AttentionRows a, AttentionPlan plan, int64_t tokens, bool wide) {
  WaitForLastKernel();
  DYN_SHARED(char, memory);
  AttentionShared<R>& shared = *reinterpret_cast<AttentionShared<R>*>(memory);
  float* q = reinterpret_cast<float*>(memory + sizeof(shared));
  const int dim = static_cast<int>(a.head_dim), y = static_cast<int>(blockIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.tokens;
  const int64_t end = first + plan.tokens < tokens ? first + plan.tokens : tokens;
  float* p = q + R * dim;
  const AttentionBlock<R, A, T> block{a, plan, shared, q, p, p + R * kSplit, first,
                                      y / plan.parts, y % plan.parts * plan.heads, dim};
  const bool one = plan.partial != nullptr;
  for (int64_t begin = first; begin < end;) {
    const int64_t sequence = a.token_sequence[begin];
    int64_t next = begin + 1;
    while (next < end && a.token_sequence[next] == sequence) ++next;
    block.SetRows(begin, next);
    int context = 0;
    for (int r = 0; r < R; ++r) {
      if (shared.context[r] > context) context = shared.context[r];
    }
    for (int s = one ? static_cast<int>(blockIdx.z) : 0; s * kSplit < context; ++s) {
      const int left = context - s * kSplit, n = left < kSplit ? left : kSplit;
      block.SetSplit(sequence, s * kSplit, n);
      block.Scores(n);
      block.Softmax(s);
      if (wide) {
        block.template Values<AttentionBlock<R, A, T>::kVector>(s, n);
      } else {
        block.template Values<1>(s, n);
      }
      if (one) break;
    }
    __syncthreads();
    begin = next;
  }
}

// Merges what AttentionKernel left in scratch memory. Grid [tokens, heads].
template <typename A>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionMergeKernel(AttentionRows a, AttentionPlan plan) {
  WaitForLastKernel();
  const int64_t token = blockIdx.x, head = blockIdx.y;
  const int splits = (a.positions[token] + kSplit) / kSplit, dim = static_cast<int>(a.head_dim);
  if (splits < 2) return;
  const int64_t at = (token * a.heads + head) * plan.splits;
  const float* stats = plan.stats + 2 * at;
  A* out = static_cast<A*>(a.out) + token * a.out_stride + head * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    const float* partial = plan.partial + at * dim + i;
    float max = stats[0], sum = stats[1], total = partial[0];
    for (int s = 1; s < splits; ++s) {
      const SplitMerge merge(max, stats[2 * s]);
      max = merge.max;
      sum = merge(sum, stats[2 * s + 1]);
      total = merge(total, partial[static_cast<int64_t>(s) * dim]);
    }
    out[i] = FromFloat<A>(total / sum);
  }
}

}  // namespace normserve::kernels
