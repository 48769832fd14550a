// SPDX-License-Identifier: Apache-2.0
// Who stands at a given place of a row, by one block and without a sort: in the order "largest value
// first, lowest id among equals" (Select), or in order of id (FindInOrder); the place is a count or a
// mass. All sums are of integers, so every order of threads gives the same bits.
//
// Every function is called by all kSelectThreads threads of the block, and tells all of them the same.
#pragma once

#include "kernels/device.cuh"

namespace normserve::kernels {

constexpr int kSelectThreads = 1024;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kIdBits = 22;  // of an id in a key
constexpr int kDigitBits = 8, kDigits = 7;
static_assert(kDigits * kDigitBits >= 32 + kIdBits, "a key is a float and an id");
constexpr int kBins = 1 << kDigitBits;
constexpr float kLowestFloat = -3.402823466e38f;

// The type of CUDA's 64-bit atomics.
using U64 = unsigned long long;

// A selection looks at a row's largest items only, where those suffice: at least kLeastListed, as a rule
// some 3000.
constexpr int kMaxListed = 4096;
constexpr int kLeastListed = kSelectThreads / 16 * 15;

struct SelectShared {
  U64 bins[kBins];  // all zero between selections
  U64 parts[kSelectWarps];
  U64 before;
  int bin;
  int listed;
  float values[kMaxListed];
  int32_t ids[kMaxListed];
};

// Value and id as one number: ascending keys are descending values, ascending ids among equals. The
// keys of finite values are above 0.
__device__ inline U64 KeyOf(float value, int id) {
  const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);  // -0 equals 0
  const uint32_t descending = bits >> 31 != 0 ? bits : ~(bits | 0x80000000u);
  return (U64{descending} << kIdBits) | static_cast<unsigned>(id);
}
constexpr U64 kLastKey = ~U64{0};  // beyond all others
__device__ inline int IdOf(U64 key) { return static_cast<int>(key & ((1u << kIdBits) - 1)); }
__device__ inline float ValueOf(U64 key) {
  const uint32_t descending = static_cast<uint32_t>(key >> kIdBits);
  return __uint_as_float(descending >> 31 != 0 ? descending : ~descending & 0x7fffffffu);
}

// Calls f(i, values[i]) for this thread's share of [0, n), ascending; eight loads are under way at a time.
template <class F>
__device__ inline void ForEach(const float* values, int n, const F& f) {
  constexpr int kLoads = 8;
  for (int base = static_cast<int>(threadIdx.x); base < n; base += kLoads * kSelectThreads) {
    float v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = base + j * kSelectThreads;
      v[j] = i < n ? values[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = base + j * kSelectThreads;
      if (i < n) f(i, v[j]);
    }
  }
}

// op commutes and associates. Orders what was written before it and what is read after it.
template <class Op>
__device__ inline U64 BlockReduce(U64 v, const Op& op, SelectShared& shared) {
  for (int o = 16; o > 0; o /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, o));
  if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = v;
  __syncthreads();
  U64 all = shared.parts[0];
  for (int w = 1; w < kSelectWarps; ++w) all = op(all, shared.parts[w]);
  __syncthreads();  // before parts is written again
  return all;
}
__device__ inline U64 BlockSum(U64 v, SelectShared& shared) {
  return BlockReduce(v, [](U64 a, U64 b) { return a + b; }, shared);
}
__device__ inline U64 BlockMin(U64 v, SelectShared& shared) {
  return BlockReduce(v, [](U64 a, U64 b) { return a < b ? a : b; }, shared);
}

// Values with their ids; ids null: a value's index is its id. Ids are distinct, in any order.
struct Items {
  const float* values;
  const int32_t* ids;
  int n;
  __device__ int Id(int i) const { return ids != nullptr ? ids[i] : i; }
};

// The amount of an item where places are counted.
struct One {
  __device__ U64 operator()(float) const { return 1; }
};

struct Selected {
  U64 key;
  U64 before;  // what the items before it amount to
};

// Once in a kernel, before a barrier (BlockReduce has one) and the first selection.
__device__ inline void ClearBins(SelectShared& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kSelectThreads) shared.bins[i] = 0;
}

// Adds to shared.bins the amounts of the items whose key begins with `prefix`, by their next digit.
// Neighbours of a thread that fall into one bin are added up first: rows of equal values would otherwise
// queue for one address.
template <class Amount>
__device__ inline void FillBins(const Items& items, U64 prefix, int shift, const Amount& amount,
                                SelectShared& shared) {
  int bin = 0;
  U64 sum = 0;
  ForEach(items.values, items.n, [&](int i, float v) {
    const U64 digits = KeyOf(v, items.Id(i)) >> shift;
    if (digits >> kDigitBits != prefix) return;
    const int its_bin = static_cast<int>(digits % kBins);
    if (its_bin != bin) {
      if (sum != 0) atomicAdd(&shared.bins[bin], sum);
      bin = its_bin;
      sum = 0;
    }
    sum += amount(v);
  });
  if (sum != 0) atomicAdd(&shared.bins[bin], sum);
  __syncthreads();
}

// The first bin with which the amounts reach `target`, and what the bins before it amount to. Clears
// the bins.
__device__ inline void FindBin(U64 target, SelectShared& shared) {
  if (threadIdx.x < 32) {
    constexpr int kPerLane = kBins / 32;
    const int lane = static_cast<int>(threadIdx.x);
    U64* bins = shared.bins + lane * kPerLane;
    U64 sum = 0;
    for (int j = 0; j < kPerLane; ++j) sum += bins[j];
    U64 through = sum;
    for (int o = 1; o < 32; o *= 2) {
      const U64 lower = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(o));
      if (lane >= o) through += lower;
    }
    U64 before = through - sum;
    if (before < target && target <= through) {
      int bin = 0;
      while (before + bins[bin] < target) before += bins[bin++];
      shared.bin = lane * kPerLane + bin;
      shared.before = before;
    }
    for (int j = 0; j < kPerLane; ++j) bins[j] = 0;
  }
  __syncthreads();
}

// The first item with which the sum of amount(value) reaches `target`, which is at least 1 and at most
// what all items amount to.
template <class Amount>
__device__ inline Selected Select(const Items& items, U64 target, const Amount& amount,
                                  SelectShared& shared) {
  Selected selected = {0, 0};
  for (int shift = (kDigits - 1) * kDigitBits; shift >= 0; shift -= kDigitBits) {
    FillBins(items, selected.key, shift, amount, shared);
    FindBin(target - selected.before, shared);
    selected.key = (selected.key << kDigitBits) | static_cast<unsigned>(shared.bin);
    selected.before += shared.before;
  }
  return selected;
}

// The first index of values[0..n) with which the sum of amount(value) reaches `target`, as above. Each
// turn leaves the part of one warp.
template <class Amount>
__device__ inline int FindInOrder(const float* values, int n, U64 target, const Amount& amount,
                                  SelectShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int begin = 0, end = n;
  while (end - begin > 32) {
    const int part = (end - begin + kSelectWarps - 1) / kSelectWarps;
    const int from = begin + warp * part, to = from + part < end ? from + part : end;
    U64 sum = 0;
#pragma unroll 8
    for (int i = from + lane; i < to; i += 32) sum += amount(values[i]);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(kAllLanes, sum, o);
    if (lane == 0) shared.parts[warp] = sum;
    __syncthreads();
    int its_warp = 0;
    for (; shared.parts[its_warp] < target; ++its_warp) target -= shared.parts[its_warp];
    begin += its_warp * part;
    if (begin + part < end) end = begin + part;
    __syncthreads();  // before parts is written again
  }
  for (int i = begin;; ++i) {
    const U64 here = amount(values[i]);
    if (target <= here) return i;
    target -= here;
  }
}

// The items of `all` that are at least `least`, but no more than the largest some 3000, in shared memory;
// `all` itself where equal values make them too many. `largest` is that of this thread's share of `all`:
// kLeastListed threads have one item each that is at least as large as the kLeastListed-th of those.
__device__ inline Items ShortList(const Items& all, float least, float largest, SelectShared& shared) {
  if (threadIdx.x == 0) shared.listed = 0;
  shared.values[threadIdx.x] = largest;
  __syncthreads();
  if (all.n > kMaxListed) {
    const Items of_threads = {shared.values, nullptr, kSelectThreads};
    least = fmaxf(least, ValueOf(Select(of_threads, kLeastListed, One(), shared).key));
  }
  bool full = false;
  ForEach(all.values, all.n, [&](int i, float v) {
    if (v < least || full) return;
    const int slot = atomicAdd(&shared.listed, 1);
    full = slot >= kMaxListed;
    if (full) return;
    shared.values[slot] = v;
    shared.ids[slot] = i;
  });
  __syncthreads();
  if (shared.listed > kMaxListed) return all;
  return {shared.values, shared.ids, shared.listed};
}

// What the items up to and with `last` amount to.
template <class Amount>
__device__ inline U64 SumThrough(const Items& items, U64 last, const Amount& amount,
                                 SelectShared& shared) {
  U64 sum = 0;
  ForEach(items.values, items.n, [&](int i, float v) {
    if (KeyOf(v, items.Id(i)) <= last) sum += amount(v);
  });
  return BlockSum(sum, shared);
}

}  // namespace normserve::kernels
