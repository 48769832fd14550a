// SPDX-License-Identifier: Apache-2.0
// A quantised weight as plain numbers: all of it, for products that a library makes, or the rows of some
// token ids. Products of scale and value are rounded to float32 first.
#pragma once

#include "kernels/cuda_rows.h"
#include "kernels/vectors.cuh"
#include "kernels/weight_rows.cuh"

namespace normserve::kernels {

constexpr int kWidenThreads = 128;

// First input of this thread's run, V = W::kRun or 1 of them. Grid [rows, inputs / (V * threads)].
template <int V>
__device__ inline int64_t WidenInput() {
  return (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * V;
}

// V weights of one row from input i on; V = W::kRun needs packs at multiples of 16 bytes.
template <class W, int V>
__device__ inline void WidenRun(const WeightRows& weights, int64_t row, int64_t i, float (&v)[V]) {
  const char* values = weights.Row(row);
  const char* scales = weights.Scales(row);
  if constexpr (V == W::kRun) {
    const int64_t pack = i / W::kValues * W::kValues;
    const int run = static_cast<int>(i - pack) / W::kRun;
    // Two threads read a pack, each for its half: from the first-level cache the second time.
    const uint4 raw = LoadPack(values + pack);
    if (run == 0) W::Widen(raw, 0, v);
    if (run == 1) W::Widen(raw, 1, v);
  } else {
    v[0] = W::Value(values, i);
  }
  const float scale = W::kRowScale ? W::RowScale(scales) : W::RunScale(scales, i);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] *= scale;
}

template <class W, typename T, int V>
__global__ void __launch_bounds__(kWidenThreads) WidenKernel(WidenRows a, WeightRows weights) {
  WaitForLastKernel();
  const int64_t row = blockIdx.x, i = WidenInput<V>();
  if (i >= a.inputs) return;
  float v[V];
  WidenRun<W, V>(weights, row, i, v);
  StoreFloats<V>(v, static_cast<T*>(a.out) + row * a.inputs + i);
}

// As EmbedKernel of gather.cuh, value by value: a table's few rows are no work.
template <class W, typename T>
__global__ void __launch_bounds__(kWidenThreads) EmbedQuantisedKernel(EmbedRows a, WeightRows weights) {
  WaitForLastKernel();
  const int64_t token = blockIdx.x, i = WidenInput<1>();
  if (i >= a.width) return;
  float v[1];
  WidenRun<W, 1>(weights, a.ids[token], i, v);
  v[0] = __fmul_rn(a.scale, v[0]);
  if (a.positions_table != nullptr) {
    v[0] = __fadd_rn(v[0], a.positions_table[a.positions[token] * a.width + i]);
  }
  StoreFloats<1>(v, static_cast<T*>(a.out) + token * a.out_stride + i);
}

}  // namespace normserve::kernels
