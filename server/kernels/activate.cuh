// SPDX-License-Identifier: Apache-2.0
// silu(N(gate)) * N(up), or gelu(N(x)), in one pass: the projections are read once, normalised in
// registers, never written. No torch, no host API.
#pragma once

#include "kernels/activate_rows.h"
#include "kernels/row_units.cuh"

namespace normserve::kernels {

__device__ inline float Silu(float v) { return v / (1.0f + expf(-v)); }
// Exact GELU, x Phi(x); by erfc, so that the negative tail does not cancel.
__device__ inline float Gelu(float v) { return 0.5f * v * erfcf(v * -0.707106781186547524f); }

// A projection's k-th pack in float: normalised where it has a norm.
template <typename T, int kPacks>
__device__ inline void ReadPack(const Share<T, kPacks>& x, const UnitNorm<T, kPacks>& norm,
                                bool has_norm, int k, float (&out)[kPackWidth<T>]) {
  if (has_norm) return norm.Apply(x, k, out);
#pragma unroll
  for (int j = 0; j < kPackWidth<T>; ++j) out[j] = ToFloat(x.packs[k].e[j]);
}

template <typename T, int kPacks, bool kGated>
__global__ void __launch_bounds__(kMaxUnitThreads) ActivateKernel(ActivateRows a, int64_t rows,
                                                                  UnitPlan plan) {
  WaitForLastKernel();
  DYN_SHARED(float, shared);
  const Unit unit(plan, a.width);
  if (unit.row >= rows) return;
  const T* x = static_cast<const T*>(a.x) + unit.row * a.x_stride + unit.begin;
  Share<T, kPacks> gate, up;
  gate.Load(x, unit);
  if constexpr (kGated) up.Load(x + a.width, unit);
  UnitNorm<T, kPacks> gate_norm(a.gate, unit), up_norm(a.up, unit);
  UnitSums sums(shared);
  if (a.has_gate_norm) gate_norm.Measure(gate, 0.0f, sums);
  if constexpr (kGated) {
    if (a.has_up_norm) up_norm.Measure(up, 0.0f, sums);
  }
  T* y = static_cast<T*>(a.y) + unit.row * a.y_stride + unit.begin;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float g[kPackWidth<T>];
    ReadPack(gate, gate_norm, a.has_gate_norm, k, g);
    if constexpr (kGated) {
      float u[kPackWidth<T>];
      ReadPack(up, up_norm, a.has_up_norm, k, u);
#pragma unroll
      for (int j = 0; j < kPackWidth<T>; ++j) g[j] = Silu(g[j]) * u[j];
    } else {
#pragma unroll
      for (int j = 0; j < kPackWidth<T>; ++j) g[j] = Gelu(g[j]);
    }
    StoreRounded(y, unit.At<T>(k), unit, Round<T>(g));
  }
}

// Where gate and up have statistics of different groups. No model has this: right, not fast. A warp
// owns a piece that lies in one group of each, and reads the groups from memory again.
template <typename T>
struct RereadNorm {
  const RowNorm* norm;
  const T* x;     // the projection's row
  int64_t width;  // of the row
  UnitScale scale;

  __device__ void Measure(int64_t piece) {
    const int64_t group = norm->numbers.group_width > 0 ? norm->numbers.group_width : width;
    const T* begin = x + piece / group * group;
    const auto sum = [](float v) { return WarpSum(v); };
    scale = MeasureUnit(
        [&](const auto& f) {
          for (int64_t i = threadIdx.x; i < group; i += kWarp) f(ToFloat(begin[i]), true);
        },
        static_cast<int>(group), norm->numbers, 0.0f, sum);
  }
  __device__ float At(int64_t i) const {
    float v = scale.scale * (ToFloat(x[i]) - scale.centre);
    if (norm->numbers.phi == NormPhi::kTanh) v = tanhf(v);
    if (norm->gamma != nullptr) v *= norm->gamma[i];
    return norm->beta != nullptr ? v + norm->beta[i] : v;
  }
};

template <typename T>
__global__ void ActivateMixedKernel(ActivateRows a, int64_t piece_width) {
  WaitForLastKernel();
  const T* x = static_cast<const T*>(a.x) + blockIdx.x * a.x_stride;
  T* y = static_cast<T*>(a.y) + blockIdx.x * a.y_stride;
  RereadNorm<T> gate = {&a.gate, x, a.width, {}}, up = {&a.up, x + a.width, a.width, {}};
  const int64_t begin = blockIdx.y * piece_width;
  gate.Measure(begin);
  up.Measure(begin);
  for (int64_t i = begin + threadIdx.x; i < begin + piece_width; i += kWarp) {
    y[i] = FromFloat<T>(Silu(gate.At(i)) * up.At(i));
  }
}

}  // namespace normserve::kernels
