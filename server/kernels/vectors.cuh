// SPDX-License-Identifier: Apache-2.0
// V neighbouring elements as one load or store of at most 16 bytes each, for kernels whose vectors
// are not always whole packs of device.cuh (V = 1 is the path for odd widths and strides).
#pragma once

#include "kernels/device.cuh"

namespace normserve::kernels {

template <typename T, int V>
struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) Vector {
  T at[V];
};

template <int V, typename T>
__device__ inline Vector<T, V> LoadVector(const T* from) {
#if defined(NORMSERVE_CUDA_EMULATED)
  emu::CheckAligned(from, alignof(Vector<T, V>));
#endif
  return *reinterpret_cast<const Vector<T, V>*>(from);
}

template <int V, typename T>
__device__ inline void StoreVector(const Vector<T, V>& v, T* to) {
#if defined(NORMSERVE_CUDA_EMULATED)
  emu::CheckAligned(to, alignof(Vector<T, V>));
#endif
  *reinterpret_cast<Vector<T, V>*>(to) = v;
}

template <int V, typename T>
__device__ inline void LoadFloats(const T* from, float* v) {
  const Vector<T, V> vector = LoadVector<V>(from);
  for (int j = 0; j < V; ++j) v[j] = ToFloat(vector.at[j]);
}

template <int V, typename T>
__device__ inline void StoreFloats(const float* v, T* to) {
  Vector<T, V> vector;
  for (int j = 0; j < V; ++j) vector.at[j] = FromFloat<T>(v[j]);
  StoreVector(vector, to);
}

// Whether p can be read `bytes` at a time, or 16 where that is less.
inline bool AlignedTo(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes < 16 ? bytes : 16) == 0;
}
// Whether rows `stride` elements apart stay so.
template <typename T>
inline bool AlignedStride(int64_t stride, int64_t bytes) {
  return stride * static_cast<int64_t>(sizeof(T)) % (bytes < 16 ? bytes : 16) == 0;
}

}  // namespace normserve::kernels
