// SPDX-License-Identifier: Apache-2.0
// How a row is spread over threads, for the norms and what is fused with them. A unit is the part
// of a row that shares its statistics: a group, the whole row, or, where nothing is reduced, any
// piece. One warp or one block owns a unit and holds it in registers: memory is read once.
//
// Which thread holds which element depends on the unit's width and the element type alone, never on
// alignment, strides or the number of rows; so do the order of every sum and thereby every bit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device.cuh"
#include "kernels/norm_math.h"

namespace normserve::kernels {

constexpr int kWarp = 32;
constexpr int kMaxUnitThreads = 512;
constexpr size_t kSumBytes = 2 * kWarp * sizeof(float);  // shared memory of UnitSums

// How one launch cuts rows into units. Units of up to 16384 elements.
struct UnitPlan {
  int elements = 0;        // of a unit; the last piece of a row may be shorter
  int per_row = 0;         // grid.y
  int packs = 0;           // 16-byte packs that a thread holds: 1, 2, 4 or 8
  int threads = 0;         // of a unit
  int rows_per_block = 0;  // more than 1 only with units of one warp: they need no barrier
  bool vectors = false;    // 16-byte loads and stores; else one element at a time
};

// `group`: the elements that share statistics, 0 where no statistic is reduced.
template <typename T>
inline UnitPlan PlanUnits(int64_t width, int64_t group, bool aligned) {
  constexpr int kVec = kPackWidth<T>;
  constexpr int64_t kPiece = 256 * kVec;
  UnitPlan plan;
  plan.elements = static_cast<int>(group > 0 ? group : width < kPiece ? width : kPiece);
  plan.per_row = static_cast<int>((width + plan.elements - 1) / plan.elements);
  const int needed = (plan.elements + kVec - 1) / kVec;
  const bool one_warp = needed <= 2 * kWarp;
  // Two packs in flight per thread where four warps are kept busy by it, more in the widest rows.
  if (one_warp) {
    plan.packs = needed <= kWarp ? 1 : 2;
  } else {
    plan.packs = needed <= 128 ? 1 : needed <= 512 ? 2 : needed <= 2048 ? 4 : 8;
  }
  const int threads = (needed + plan.packs - 1) / plan.packs;
  plan.threads = one_warp ? kWarp : (threads + kWarp - 1) / kWarp * kWarp;
  plan.rows_per_block = one_warp ? 4 : 1;
  plan.vectors = aligned && width % kVec == 0 && plan.elements % kVec == 0;
  return plan;
}

// Elements that share the norm's statistics; 0 where it reduces none.
inline int64_t ReducedGroup(const RowNorm& norm, int64_t width) {
  if (!NeedsMean(norm.numbers) && !MeasuresStat(norm.numbers)) return 0;
  return norm.numbers.group_width > 0 ? norm.numbers.group_width : width;
}

inline bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
inline bool Aligned(const RowNorm& norm) { return Aligned(norm.gamma) && Aligned(norm.beta); }

inline dim3 UnitGrid(const UnitPlan& plan, int64_t rows) {
  const int64_t blocks = (rows + plan.rows_per_block - 1) / plan.rows_per_block;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.per_row));
}
inline dim3 UnitBlock(const UnitPlan& plan) {
  return dim3(static_cast<unsigned>(plan.threads), static_cast<unsigned>(plan.rows_per_block));
}

// This thread's unit.
struct Unit {
  int64_t row;
  int begin;  // of the unit in its row
  int n;      // its elements
  bool vectors;

  __device__ Unit(const UnitPlan& plan, int64_t width)
      : row(static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y),
        begin(static_cast<int>(blockIdx.y) * plan.elements),
        n(plan.elements),
        vectors(plan.vectors) {
    if (width - begin < n) n = static_cast<int>(width - begin);
  }
  // First element of the thread's k-th pack.
  template <typename T>
  __device__ int At(int k) const {
    return static_cast<int>(k * blockDim.x + threadIdx.x) * kPackWidth<T>;
  }
};

// A thread's share of a unit; 0 beyond its end.
template <typename T, int kPacks>
struct Share {
  static constexpr int kVec = kPackWidth<T>;
  Pack<T> packs[kPacks];

  __device__ void Load(const T* x, const Unit& unit) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) packs[k].raw = uint4{0, 0, 0, 0};
    if (unit.vectors) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        if (unit.At<T>(k) < unit.n) packs[k].raw = LoadPack(x + unit.At<T>(k));
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int at = unit.At<T>(k);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        if (at + j < unit.n) packs[k].e[j] = x[at + j];
      }
    }
  }

  // Calls f(value, whether it is an element of the unit) in order.
  template <class F>
  __device__ void ForEach(const Unit& unit, const F& f) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int at = unit.At<T>(k);
#pragma unroll
      for (int j = 0; j < kVec; ++j) f(ToFloat(packs[k].e[j]), at + j < unit.n);
    }
  }
};

// Rounds a pack of results and stores what of it lies in the unit.
template <typename T>
__device__ inline void StoreRounded(T* y, int at, const Unit& unit, Pack<T> pack) {
  if (unit.vectors) {
    if (at < unit.n) StorePack(y + at, pack.raw);
    return;
  }
#pragma unroll
  for (int j = 0; j < kPackWidth<T>; ++j) {
    if (at + j < unit.n) y[at + j] = pack.e[j];
  }
}

template <typename T>
__device__ inline Pack<T> Round(const float (&v)[kPackWidth<T>]) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < kPackWidth<T>; j += 2) SetPair(pack.e + j, v[j], v[j + 1]);
  return pack;
}

// Sums over a unit's threads; every thread gets the sum. Two buffers by turns: a buffer is written
// again only after a barrier that everybody reaches after reading it.
class UnitSums {
 public:
  __device__ explicit UnitSums(float* shared) : shared_(shared) {}

  __device__ float operator()(float v) {
    v = WarpSum(v);
    if (blockDim.x == kWarp) return v;
    float* parts = shared_ + turn_ * kWarp;
    turn_ ^= 1;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) parts[threadIdx.x / kWarp] = v;
    __syncthreads();
    return WarpSum(lane < static_cast<int>(blockDim.x) / kWarp ? parts[lane] : 0.0f);
  }

 private:
  float* shared_;
  int turn_ = 0;
};

struct UnitScale {
  float stat = 0.0f;    // mean square, variance, or the carried value
  float scale = 1.0f;   // s
  float centre = 0.0f;  // what is subtracted from x
};

// The statistic of n elements and what follows from it; each(f) calls f(value, valid) for those
// that this thread holds, 0 for the invalid. A variance takes two passes over the registers.
template <class Each, class Sums>
__device__ inline UnitScale MeasureUnit(const Each& each, int n, const NormNumbers& norm,
                                        float carried, Sums& sums) {
  UnitScale result;
  float mean = 0.0f;
  const float count = static_cast<float>(n);
  if (NeedsMean(norm)) {
    float sum = 0.0f;
    each([&](float v, bool) { sum += v; });
    mean = sums(sum) / count;
  }
  float sum = 0.0f;
  if (norm.stat == NormStat::kMeanSquare) {
    each([&](float v, bool) { sum = fmaf(v, v, sum); });
    result.stat = sums(sum) / count;
  } else if (norm.stat == NormStat::kVariance) {
    each([&](float v, bool valid) {
      const float c = valid ? v - mean : 0.0f;
      sum = fmaf(c, c, sum);
    });
    result.stat = sums(sum) / count;
  } else if (norm.stat == NormStat::kCarried) {
    result.stat = carried;
  }
  result.scale = NormScale(norm, result.stat, mean);
  if (norm.centring == NormCentring::kSubtractMean) result.centre = mean;
  return result;
}

// kVec of gamma or beta, `fill` where there is none.
template <int kVec>
__device__ inline void LoadParameters(const float* p, float fill, int at, const Unit& unit,
                                      float (&out)[kVec]) {
  constexpr int kFloats = kPackWidth<float>;
  if (p != nullptr && unit.vectors && at < unit.n) {
#pragma unroll
    for (int j = 0; j < kVec; j += kFloats) {
      Pack<float> four;
      four.raw = LoadPack(p + unit.begin + at + j);
#pragma unroll
      for (int i = 0; i < kFloats; ++i) out[j + i] = four.e[i];
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    out[j] = p != nullptr && at + j < unit.n ? p[unit.begin + at + j] : fill;
  }
}

// One norm over one unit. gamma is read before the statistic is known where registers allow, so
// that its way from memory and the reduction pass at the same time.
template <typename T, int kPacks>
class UnitNorm {
 public:
  static constexpr int kVec = kPackWidth<T>;

  __device__ UnitNorm(const RowNorm& norm, const Unit& unit) : norm_(norm), unit_(unit) {
    if constexpr (kEarly) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        LoadParameters<kVec>(norm_.gamma, 1.0f, unit_.At<T>(k), unit_, gamma_[k]);
      }
    }
  }

  __device__ void Measure(const Share<T, kPacks>& x, float carried, UnitSums& sums) {
    scale_ = MeasureUnit([&](const auto& f) { x.ForEach(unit_, f); }, unit_.n, norm_.numbers,
                         carried, sums);
  }
  __device__ float stat() const { return scale_.stat; }

  // N of the k-th pack, not rounded.
  __device__ void Apply(const Share<T, kPacks>& x, int k, float (&y)[kVec]) const {
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      y[j] = scale_.scale * (ToFloat(x.packs[k].e[j]) - scale_.centre);
    }
    if (norm_.numbers.phi == NormPhi::kTanh) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) y[j] = tanhf(y[j]);
    }
    float parameter[kVec];
    const int at = unit_.At<T>(k);
    if constexpr (!kEarly) LoadParameters<kVec>(norm_.gamma, 1.0f, at, unit_, parameter);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      if constexpr (kEarly) {
        y[j] *= gamma_[k][j];
      } else {
        y[j] *= parameter[j];
      }
    }
    if (norm_.beta == nullptr) return;
    LoadParameters<kVec>(norm_.beta, 0.0f, at, unit_, parameter);
#pragma unroll
    for (int j = 0; j < kVec; ++j) y[j] += parameter[j];
  }

 private:
  static constexpr bool kEarly = kPacks * kVec <= 16;
  const RowNorm& norm_;
  const Unit& unit_;
  UnitScale scale_;
  float gamma_[kEarly ? kPacks : 1][kVec];
};

// Calls body with the number of packs per thread as a compile-time constant. The 16-bit types need
// no more than 4 for 16384 elements.
template <typename T, class Body>
inline void WithPacks(int packs, const Body& body) {
  if (packs == 1) return body(std::integral_constant<int, 1>{});
  if (packs == 2) return body(std::integral_constant<int, 2>{});
  if (packs == 4 || sizeof(T) < sizeof(float)) return body(std::integral_constant<int, 4>{});
  if constexpr (sizeof(T) == sizeof(float)) body(std::integral_constant<int, 8>{});
}

}  // namespace normserve::kernels
