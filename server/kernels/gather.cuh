// SPDX-License-Identifier: Apache-2.0
// Rows picked by index: the embedding of token ids, and plain copies.
#pragma once

#include "kernels/cuda_rows.h"
#include "kernels/vectors.cuh"

namespace normserve::kernels {

constexpr int kGatherThreads = 256;

// Element index of this thread's vector within the row.
template <int V>
__device__ inline int64_t GatherElement() {
  return (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * V;
}

// Grid [tokens, width / (V * threads)]. Product and sum are rounded apart, as on the CPU. W is the
// table's element, T that of out; V divides every width and stride, or is 1.
template <typename W, typename T, int V>
__global__ void __launch_bounds__(kGatherThreads) EmbedKernel(EmbedRows a) {
  WaitForLastKernel();
  const int64_t token = blockIdx.x, i = GatherElement<V>();
  if (i >= a.width) return;
  float v[V], add[V];
  LoadFloats<V>(static_cast<const W*>(a.table) + a.ids[token] * a.width + i, v);
  for (int j = 0; j < V; ++j) v[j] = __fmul_rn(a.scale, v[j]);
  if (a.positions_table != nullptr) {
    LoadFloats<V>(a.positions_table + a.positions[token] * a.width + i, add);
    for (int j = 0; j < V; ++j) v[j] = __fadd_rn(v[j], add[j]);
  }
  StoreFloats<V>(v, static_cast<T*>(a.out) + token * a.out_stride + i);
}

// Grid as above, [count, ...]. T stands for the element's size only: bits are copied.
template <typename T, int V>
__global__ void __launch_bounds__(kGatherThreads) GatherKernel(GatherArgs a) {
  WaitForLastKernel();
  const int64_t row = blockIdx.x, i = GatherElement<V>();
  if (i >= a.width) return;
  const T* from = static_cast<const T*>(a.x) + a.rows[row] * a.x_stride + i;
  T* to = static_cast<T*>(a.out) + row * a.out_stride + i;
  StoreVector(LoadVector<V>(from), to);
}

}  // namespace normserve::kernels
