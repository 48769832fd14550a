// SPDX-License-Identifier: Apache-2.0
// Norm and ResidualNorm over units of rows; what differs between the norms is in NormNumbers. No
// torch, no host API. Threads beyond the rows exist only in units of one warp, so that barriers
// stay whole.
#pragma once

#include "kernels/row_units.cuh"

namespace normserve::kernels {

// What the norm reads of row_stat, and what it leaves there.
__device__ inline float CarriedStat(const RowNorm& norm, const float* row_stat, int64_t row) {
  const bool reads = row_stat != nullptr && norm.numbers.stat == NormStat::kCarried;
  return reads ? row_stat[row] : 0.0f;
}
__device__ inline void KeepStat(const RowNorm& norm, float* row_stat, int64_t width,
                                const Unit& unit, float stat) {
  const bool whole_row = unit.n == width;
  if (row_stat != nullptr && whole_row && MeasuresStat(norm.numbers) && threadIdx.x == 0) {
    row_stat[unit.row] = stat;
  }
}

// y = N(x); y may be x.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMaxUnitThreads) NormKernel(NormRows a, int64_t rows,
                                                              UnitPlan plan) {
  WaitForLastKernel();
  DYN_SHARED(float, shared);
  const Unit unit(plan, a.width);
  if (unit.row >= rows) return;
  Share<T, kPacks> x;
  x.Load(static_cast<const T*>(a.x) + unit.row * a.x_stride + unit.begin, unit);
  UnitNorm<T, kPacks> norm(a.norm, unit);
  UnitSums sums(shared);
  norm.Measure(x, CarriedStat(a.norm, a.row_stat, unit.row), sums);
  KeepStat(a.norm, a.row_stat, a.width, unit, norm.stat());
  T* y = static_cast<T*>(a.y) + unit.row * a.y_stride + unit.begin;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float v[kPackWidth<T>];
    norm.Apply(x, k, v);
    StoreRounded(y, unit.At<T>(k), unit, Round<T>(v));
  }
}

// h += delta or out(delta), rounded once.
template <typename T, int kPacks>
__device__ inline void AddToResidual(const ResidualRows& a, const Unit& unit, UnitSums& sums,
                                     const Share<T, kPacks>& delta, Share<T, kPacks>& h) {
  constexpr int kVec = kPackWidth<T>;
  if (!a.has_out) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float v[kVec];
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        v[j] = ToFloat(h.packs[k].e[j]) + ToFloat(delta.packs[k].e[j]);
      }
      h.packs[k] = Round<T>(v);
    }
    return;
  }
  UnitNorm<T, kPacks> norm(a.out, unit);
  norm.Measure(delta, 0.0f, sums);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float v[kVec];
    norm.Apply(delta, k, v);
    // 0 again beyond the unit's end, where N(0) need not be: the next norm sums over it.
    const int left = unit.n - unit.At<T>(k);
#pragma unroll
    for (int j = 0; j < kVec; ++j) v[j] = j < left ? ToFloat(h.packs[k].e[j]) + v[j] : 0.0f;
    h.packs[k] = Round<T>(v);
  }
}

// Blocks that ptxas makes room for, 0 for its own choice: what leaves no instance with spills on any architecture.
template <typename T>
constexpr int kResidualBlocks = sizeof(T) == 2 ? 1 : 0;

// h += out(delta), y = next(h) of the rounded h, which stays in registers in between.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMaxUnitThreads, kResidualBlocks<T>)
    ResidualKernel(ResidualRows a, int64_t rows, UnitPlan plan) {
  WaitForLastKernel();
  DYN_SHARED(float, shared);
  const Unit unit(plan, a.width);
  if (unit.row >= rows) return;
  UnitSums sums(shared);
  T* h_row = static_cast<T*>(a.h) + unit.row * a.h_stride + unit.begin;
  Share<T, kPacks> h, delta;
  h.Load(h_row, unit);
  delta.Load(static_cast<const T*>(a.delta) + unit.row * a.delta_stride + unit.begin, unit);
  AddToResidual(a, unit, sums, delta, h);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) StoreRounded(h_row, unit.At<T>(k), unit, h.packs[k]);
  if (!a.has_next) return;
  UnitNorm<T, kPacks> norm(a.next, unit);
  norm.Measure(h, CarriedStat(a.next, a.row_stat, unit.row), sums);
  KeepStat(a.next, a.row_stat, a.width, unit, norm.stat());
  T* y = static_cast<T*>(a.y) + unit.row * a.y_stride + unit.begin;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float v[kPackWidth<T>];
    norm.Apply(h, k, v);
    StoreRounded(y, unit.At<T>(k), unit, Round<T>(v));
  }
}

}  // namespace normserve::kernels
