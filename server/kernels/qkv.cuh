// SPDX-License-Identifier: Apache-2.0
// q, k and v of a token in one kernel: norm, rotary embedding, cache write. A block takes one unit:
// whole heads and whole norm groups of one of q, k, v of one token, so that it needs nothing of any
// other block. Its elements are read once (into shared memory where a norm has to measure them
// first); all is float32 between the load and the one rounding at the store.
#pragma once

#include "kernels/norm_math.h"
#include "kernels/qkv_rows.h"
#include "kernels/vectors.cuh"

namespace normserve::kernels {

constexpr int kQkvMaxThreads = 512;
constexpr int kQkvPartials = 32;  // sums of a block's warps

// How the three parts are cut: by the model's shape alone, never by the number of tokens.
struct QkvPlan {
  int unit[3] = {0, 0, 0};   // elements per block; the last unit of a part may be shorter
  int units[3] = {0, 0, 0};  // per token
  bool staged = true;        // a unit that is measured fits the shared memory
  int stage_bytes = 0;       // of the staged unit; a multiple of 16
};

// What a statistic makes of the elements of its group.
struct QkvGroup {
  float scale, centre;
};

// A thread's share of a sum over x[0..n): chunks of 16 bytes, whether loaded as one (kVector) or
// not, so that the order does not depend on the alignment.
template <bool kVector, typename T, class F>
__device__ float QkvPartialSum(const T* x, int n, int thread, int threads, const F& f) {
  constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
  float sum = 0.0f;
  for (int i = thread * kChunk; i < n; i += threads * kChunk) {
    if (kVector) {
      float v[kChunk];
      LoadFloats<kChunk>(x + i, v);
      for (int j = 0; j < kChunk; ++j) sum = f(v[j], sum);
    } else {
      for (int j = 0; j < kChunk && i + j < n; ++j) sum = f(ToFloat(x[i + j]), sum);
    }
  }
  return sum;
}

// The sum of all threads' v; every thread of the block calls. `partial`: kQkvPartials floats.
__device__ inline float QkvBlockSum(float v, float* partial) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = WarpSum(v);
  if (lane == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = WarpSum(lane < warps ? partial[lane] : 0.0f);
  __syncthreads();  // before the next call writes
  return v;
}

// The scale and centre of one group of n elements. `sum(f)` is the sum of f over the group.
template <class Sum>
__device__ QkvGroup QkvMeasure(const NormNumbers& norm, int n, const Sum& sum) {
  const float count = static_cast<float>(n);
  float mean = 0.0f, stat = 0.0f;
  if (NeedsMean(norm)) mean = sum([](float v, float s) { return s + v; }) / count;
  if (norm.stat == NormStat::kMeanSquare) {
    stat = sum([](float v, float s) { return fmaf(v, v, s); }) / count;
  } else if (norm.stat == NormStat::kVariance) {
    stat = sum([mean](float v, float s) { return fmaf(v - mean, v - mean, s); }) / count;
  }
  return {NormScale(norm, stat, mean), norm.centring == NormCentring::kSubtractMean ? mean : 0.0f};
}

// Measures the groups of x[0..n). A group of up to a head's largest width is a warp's, a wider one
// the block's: the choice hangs on the group's width only.
template <bool kVector, typename T>
__device__ void QkvMeasureGroups(const NormNumbers& norm, const T* x, int n, int width,
                                 float* partial, QkvGroup* groups) {
  const int count = n / width;
  if (width > kMaxHeadDim) {
    for (int g = 0; g < count; ++g) {
      const QkvGroup group = QkvMeasure(norm, width, [&](const auto& f) {
        return QkvBlockSum(
            QkvPartialSum<kVector>(x + g * width, width, threadIdx.x, blockDim.x, f), partial);
      });
      if (threadIdx.x == 0) groups[g] = group;
    }
    return;
  }
  const int lane = threadIdx.x % 32;
  for (int g = threadIdx.x / 32; g < count; g += blockDim.x / 32) {
    const QkvGroup group = QkvMeasure(norm, width, [&](const auto& f) {
      return WarpSum(QkvPartialSum<kVector>(x + g * width, width, lane, 32, f));
    });
    if (lane == 0) groups[g] = group;
  }
}

// One unit of a token, ready to be normalised and rotated V elements at a time. Products and sums
// are kept apart (no fused multiply-add), as on the CPU. T is the projection's element, C the
// cache's.
template <typename T, typename C, int V>
struct QkvUnit {
  const QkvRows& a;
  int part;                // q, k, v
  int begin, n;            // its elements within the part
  const T* x;              // where they are read, in shared or global memory
  T* q;                    // the part in the projection; written for q only
  const QkvGroup* groups;  // of this unit
  int group_width;
  int64_t slot;

  // N(x) of elements [i, i + V) of the unit.
  __device__ void Load(int i, float* v) const {
    LoadFloats<V>(x + i, v);
    if (!a.has_norm[part]) return;
    const RowNorm& norm = a.norm[part];
    const QkvGroup group = groups[i / group_width];
    const bool tanh = norm.numbers.phi == NormPhi::kTanh;
    for (int j = 0; j < V; ++j) v[j] = __fmul_rn(group.scale, v[j] - group.centre);
    if (tanh) {
      for (int j = 0; j < V; ++j) v[j] = tanhf(v[j]);
    }
    float p[V];
    if (norm.gamma != nullptr) {
      LoadFloats<V>(norm.gamma + begin + i, p);
      for (int j = 0; j < V; ++j) v[j] = __fmul_rn(v[j], p[j]);
    }
    if (norm.beta != nullptr) {
      LoadFloats<V>(norm.beta + begin + i, p);
      for (int j = 0; j < V; ++j) v[j] = __fadd_rn(v[j], p[j]);
    }
  }

  __device__ void Store(int i, const float* v) const {
    const int element = begin + i;
    if (part == 0) return StoreFloats<V>(v, q + element);
    const int64_t block = slot / a.block_size, offset = slot % a.block_size;
    const int64_t base = block * a.kv_heads * a.head_dim * a.block_size;
    C* to = static_cast<C*>(part == 1 ? a.k_cache : a.v_cache) + base;
    if (part == 1 && !a.keys_by_position) {
      for (int j = 0; j < V; ++j) to[offset + (element + j) * a.block_size] = FromFloat<C>(v[j]);
      return;
    }
    const int dim = static_cast<int>(a.head_dim), head = element / dim;
    StoreFloats<V>(v, to + (head * a.block_size + offset) * dim + element % dim);
  }

  // Pair (r, i) of two elements a quarter turn apart: r' = r c - i s, i' = i c + r s.
  __device__ static void Turn(float c, float s, float& r, float& i) {
    const float turned = __fadd_rn(__fmul_rn(r, c), -__fmul_rn(i, s));
    i = __fadd_rn(__fmul_rn(i, c), __fmul_rn(r, s));
    r = turned;
  }

  // 2 V elements of each head at a time: the partners' vectors, or V pairs in a row.
  __device__ void Rotate(const float* table) const {
    const int dim = static_cast<int>(a.head_dim), half = dim / 2, steps = half / V;
    for (int item = threadIdx.x; item < n / (2 * V); item += blockDim.x) {
      const int head = item / steps * dim, i = item % steps * V;
      const int first = head + (a.interleaved ? 2 * i : i);
      const int second = first + (a.interleaved ? V : half);
      float v[2 * V], c[V], s[V];
      Load(first, v);
      Load(second, v + V);
      for (int j = 0; j < V; ++j) c[j] = s[j] = NAN;  // a position outside the table
      if (table != nullptr) {
        LoadFloats<V>(table + i, c);
        LoadFloats<V>(table + half + i, s);
      }
      if (a.interleaved) {
        for (int j = 0; j < V; ++j) Turn(c[j], s[j], v[2 * j], v[2 * j + 1]);
      } else {
        for (int j = 0; j < V; ++j) Turn(c[j], s[j], v[j], v[V + j]);
      }
      Store(first, v);
      Store(second, v + V);
    }
  }

  __device__ void Copy() const {
    for (int i = threadIdx.x * V; i < n; i += blockDim.x * V) {
      float v[V];
      Load(i, v);
      Store(i, v);
    }
  }
};

// Grid [tokens, units of q + k + v]. Dynamic shared memory: kQkvPartials floats, the staged unit,
// its groups. V is 1, or 16 bytes of T where every width, stride and pointer allows it.
template <typename T, typename C, int V>
__global__ void __launch_bounds__(kQkvMaxThreads, 2) QkvKernel(QkvRows a, QkvPlan plan) {
  WaitForLastKernel();
  DYN_SHARED(float, partial);
  char* shared = reinterpret_cast<char*>(partial + kQkvPartials);
  const int64_t token = blockIdx.x;
  const int before_k = plan.units[0], before_v = before_k + plan.units[1];
  const int y = static_cast<int>(blockIdx.y), part = (y >= before_k) + (y >= before_v);
  const int64_t slot = a.slots[token];
  const bool normed = a.has_norm[part];
  if (part == 0 ? !normed && !a.rotary : slot < 0) return;

  T* x = static_cast<T*>(a.qkv) + token * a.qkv_stride;
  if (part > 0) x += (a.heads + (part - 1) * a.kv_heads) * a.head_dim;
  const int width = static_cast<int>((part == 0 ? a.heads : a.kv_heads) * a.head_dim);
  // Chosen without an index: an indexed argument would be copied to local memory.
  const int unit = part == 0 ? plan.unit[0] : part == 1 ? plan.unit[1] : plan.unit[2];
  const int begin = (y - (part == 0 ? 0 : part == 1 ? before_k : before_v)) * unit;
  const int n = unit < width - begin ? unit : width - begin;
  const NormNumbers& numbers = a.norm[part].numbers;
  const int group_width = numbers.group_width > 0 ? numbers.group_width : width;
  const T* source = x + begin;
  QkvGroup* groups = reinterpret_cast<QkvGroup*>(shared + plan.stage_bytes);
  if (normed) {
    if (plan.staged) {
      T* stage = reinterpret_cast<T*>(shared);
      for (int i = threadIdx.x * V; i < n; i += blockDim.x * V) {
        StoreVector(LoadVector<V>(source + i), stage + i);
      }
      source = stage;
      __syncthreads();
    }
    QkvMeasureGroups<(V > 1)>(numbers, source, n, group_width, partial, groups);
    __syncthreads();
  }
  const QkvUnit<T, C, V> work{a, part, begin, n, source, x, groups, group_width, slot};
  if (!a.rotary || part == 2) return work.Copy();
  const int64_t position = a.positions[token];
  const bool known = position >= 0 && position < a.cos_sin_positions;
  work.Rotate(known ? a.cos_sin + position * a.cos_sin_stride : nullptr);
}

}  // namespace normserve::kernels
