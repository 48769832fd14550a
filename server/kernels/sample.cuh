// SPDX-License-Identifier: Apache-2.0
// One logits row to one decision, by one block: what engine/sampler.h says, with the same order of
// penalties, truncations and ties. Nothing here depends on the number of rows or on what another row
// holds. No torch, no host API.
//
// DIFFERS from the CPU's sampler: weights are summed as integers of 2^-40, not in double, so that no
// order of threads changes a sum. A draw differs where the uniform number lies within that of a boundary.
#pragma once

#include "kernels/block_select.cuh"
#include "kernels/sample_rows.h"
#include "kernels/sample_weights.cuh"

namespace normserve::kernels {

static_assert(kMaxSampledVocabulary == int64_t{1} << kIdBits, "ids fit the keys");

struct SampleShared {
  SelectShared select;
  U64 top_keys[kMaxSampledTop];
  int tops;
};

// What every step of a row needs.
struct SampleRow {
  const SampleTask& task;
  const float* logits;
  float* work;
  int n;
  SampleShared& shared;
};

// Fills row.work.
__device__ inline void AdjustRow(const SampleRow& row, const TokenAdjustment* adjustments) {
  ForEach(row.logits, row.n, [&](int i, float x) { row.work[i] = x; });
  __syncthreads();
  const TokenAdjustment* own = adjustments + row.task.first_adjustment;
  for (int i = static_cast<int>(threadIdx.x); i < row.task.adjustments; i += kSelectThreads) {
    row.work[own[i].id] = Adjusted(row.work[own[i].id], own[i], row.task);
  }
  __syncthreads();
}

// The key of the row's largest value, 0 where the row has a NaN or Inf.
__device__ inline U64 LargestKey(const float* values, int n, SelectShared& shared) {
  float largest = -INFINITY, odd = 0.0f;
  int id = 0;
  ForEach(values, n, [&](int i, float x) {
    odd += x - x;  // 0 for a finite x, else NaN, which a sum never loses
    if (x > largest) {
      largest = x;
      id = i;
    }
  });
  const U64 none = KeyOf(-INFINITY, 0);  // of a thread without an element
  return BlockMin(odd != 0.0f ? 0 : largest == -INFINITY ? none : KeyOf(largest, id), shared);
}

// The mass with which a prefix has the wanted part of `total`: 1 to total.
__device__ inline U64 Between(U64 target, U64 total) {
  return target < 1 ? 1 : target > total ? total : target;
}
__device__ inline U64 DrawnMass(double uniform, U64 total) {
  return Between(static_cast<U64>(uniform * static_cast<double>(total)) + 1, total);
}

// The k of top_k, the row's length where all are meant.
__device__ inline int TopK(const SampleRow& row) {
  const uint32_t k = row.task.top_k;
  return k > 0 && k < static_cast<uint32_t>(row.n) ? static_cast<int>(k) : row.n;
}

// Draws from the weights in row.work, truncated: every truncation leaves a prefix of the one order, of
// which only the mass matters to the next. `total` is the mass of all weights; at every step that of the
// prefix, which lies within `items`.
__device__ inline int DrawFromPrefix(const SampleRow& row, U64 total, float largest_of_thread) {
  const SampleTask& task = row.task;
  SelectShared& shared = row.shared.select;
  const Items all = {row.work, nullptr, row.n};
  Items items = ShortList(all, kLeastMass, largest_of_thread, shared);
  const U64 listed = items.ids == nullptr ? total : SumThrough(items, kLastKey, Mass(), shared);
  const int k = TopK(row);
  if (k < row.n && k > items.n && listed < total) items = all;
  // Where the items have all mass, a k beyond them cuts off none.
  if (k < row.n && k <= items.n) {
    total = SumThrough(items, Select(items, static_cast<U64>(k), One(), shared).key, Mass(), shared);
  }
  if (task.top_p < 1.0f) {
    const double wanted = ceil(static_cast<double>(task.top_p) * static_cast<double>(total));
    const U64 target = Between(static_cast<U64>(wanted), total);
    if (target > listed) items = all;
    const Selected last = Select(items, target, Mass(), shared);
    total = last.before + Mass()(ValueOf(last.key));
  }
  if (task.min_p > 0.0f) {
    // Those of min_p and more are a prefix too: the shorter one counts.
    const MassFrom likely = {fminf(task.min_p, 1.0f)};
    const U64 mass = SumThrough(items, kLastKey, likely, shared);
    if (mass < total) total = mass;
  }
  return IdOf(Select(items, DrawnMass(task.uniform, total), Mass(), shared).key);
}

// Draws from softmax(from / temperature), truncated. `from` may be row.work, which becomes weights, the
// largest of them 1.
__device__ inline int Draw(const SampleRow& row, const float* from, float max) {
  const SampleTask& task = row.task;
  const bool prefix = TopK(row) < row.n || task.top_p < 1.0f;
  const MassFrom amount = {prefix ? 0.0f : fminf(task.min_p, 1.0f)};
  const float temperature = task.temperature;  // once: a store to work could change it
  U64 total = 0;
  float largest = 0.0f;
  ForEach(from, row.n, [&](int i, float x) {
    const float weight = ExpOfRow(fmaxf((x - max) / temperature, -200.0f));
    row.work[i] = weight;
    largest = fmaxf(largest, weight);
    total += amount(weight);
  });
  total = BlockSum(total, row.shared.select);
  if (prefix) return DrawFromPrefix(row, total, largest);
  return FindInOrder(row.work, row.n, DrawnMass(task.uniform, total), amount, row.shared.select);
}

// `best` is the key of the row's largest logit.
__device__ inline int Choose(const SampleRow& row, const TokenAdjustment* adjustments, U64 best) {
  const float* from = row.logits;
  if (row.task.adjustments > 0) {
    AdjustRow(row, adjustments);
    from = row.work;
    best = LargestKey(from, row.n, row.shared.select);
  }
  if (!(row.task.temperature > 0.0f) || row.task.top_k == 1) return IdOf(best);
  return Draw(row, from, ValueOf(best));
}

// The `top` largest logits in order.
__device__ inline void FillTop(const SampleRow& row, int top, float largest_of_thread, double norm,
                               SampledRow& result) {
  SampleShared& shared = row.shared;
  const Items items =
      ShortList({row.logits, nullptr, row.n}, kLowestFloat, largest_of_thread, shared.select);
  const U64 last = Select(items, static_cast<U64>(top), One(), shared.select).key;
  if (threadIdx.x == 0) shared.tops = 0;
  __syncthreads();
  ForEach(items.values, items.n, [&](int i, float v) {
    const U64 key = KeyOf(v, items.Id(i));
    if (key <= last) shared.top_keys[atomicAdd(&shared.tops, 1)] = key;
  });
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= top) return;
  const U64 key = shared.top_keys[threadIdx.x];
  int place = 0;
  for (int i = 0; i < top; ++i) place += shared.top_keys[i] < key ? 1 : 0;
  result.top_ids[place] = IdOf(key);
  result.top_logprobs[place] = static_cast<float>(static_cast<double>(row.logits[IdOf(key)]) - norm);
}

// Log-probabilities of the row as it came.
__device__ inline void FillLogProbs(const SampleRow& row, int id, float max, int top,
                                    SampledRow& result) {
  U64 total = 0;
  float largest = kLowestFloat;
  ForEach(row.logits, row.n, [&](int, float x) {
    total += Mass()(ExpOfRow(x - max));
    largest = fmaxf(largest, x);
  });
  total = BlockSum(total, row.shared.select);
  const double norm = log(static_cast<double>(total) * 0x1p-40) + static_cast<double>(max);
  if (threadIdx.x == 0) {
    result.logprob = static_cast<float>(static_cast<double>(row.logits[id]) - norm);
  }
  if (top > 0) FillTop(row, top, largest, norm, result);
}

// What is known without log-probabilities, and what stays of the alternatives.
__device__ inline void FillResult(int id, bool finite, bool is_argmax, int top, SampledRow& result) {
  if (threadIdx.x == 0) {
    result.id = id;
    result.finite = finite ? 1 : 0;
    result.is_argmax = is_argmax ? 1 : 0;
    result.logprob = 0.0f;
  }
  for (int i = top + static_cast<int>(threadIdx.x); i < kMaxSampledTop; i += kSelectThreads) {
    result.top_ids[i] = -1;
    result.top_logprobs[i] = 0.0f;
  }
}

// Grid [rows].
__global__ void __launch_bounds__(kSelectThreads) SampleKernel(SampleArgs a) {
  WaitForLastKernel();
  DYN_SHARED(SampleShared, shared);
  const int64_t at = blockIdx.x;
  const SampleRow row = {a.tasks[at], a.logits + at * a.logits_stride, a.work + at * a.vocab,
                         static_cast<int>(a.vocab), *shared};
  const SampleTask& task = row.task;
  SampledRow& result = a.results[at];
  ClearBins(shared->select);
  const U64 best = LargestKey(row.logits, row.n, shared->select);
  if (best == 0) return FillResult(0, false, false, 0, result);
  const int id = task.target >= 0 ? task.target : Choose(row, a.adjustments, best);
  int top = task.top_logprobs < kMaxSampledTop ? task.top_logprobs : kMaxSampledTop;
  if (top > row.n) top = row.n;
  FillResult(id, true, id == IdOf(best), top, result);
  if (task.logprob != 0 || top > 0) FillLogProbs(row, id, ValueOf(best), top, result);
}

}  // namespace normserve::kernels
