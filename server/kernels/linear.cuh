// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for few rows, where reading the weights is all that takes time. A warp owns some outputs
// for all rows of a tile: lanes stride over the inputs by 16-byte packs of weights, so that every weight is
// read once and x comes from the first-level cache. Optionally h += y and a norm of h by elements in the same
// pass. No torch, no host API, no barrier of the block.
//
// Lane l sums packs l, l + 32, ... in order, then a butterfly sums the lanes: the order, and so every bit, is
// the same for any tile, any number of rows and any alignment.
#pragma once

#include "kernels/cuda_rows.h"
#include "kernels/norm_math.h"
#include "kernels/vectors.cuh"
#include "kernels/weight_rows.cuh"

namespace normserve::kernels {

constexpr int kLanes = 32;
constexpr int kLinearWarps = 4;  // of a block; they share nothing but x in the cache
constexpr int kLinearThreads = kLinearWarps * kLanes;

// Element i of an array whose type is known when it runs: once per output, not per weight.
__device__ inline float LoadAs(RowType type, const void* from, int64_t i) {
  if (type == RowType::kFloat32) return static_cast<const float*>(from)[i];
  if (type == RowType::kBFloat16) return ToFloat(static_cast<const __nv_bfloat16*>(from)[i]);
  return ToFloat(static_cast<const __half*>(from)[i]);
}
__device__ inline void StoreAs(RowType type, float v, void* to, int64_t i) {
  if (type == RowType::kFloat32) {
    static_cast<float*>(to)[i] = v;
  } else if (type == RowType::kBFloat16) {
    static_cast<__nv_bfloat16*>(to)[i] = FromFloat<__nv_bfloat16>(v);
  } else {
    static_cast<__half*>(to)[i] = FromFloat<__half>(v);
  }
}
__device__ inline float RoundAs(RowType type, float v) {
  if (type == RowType::kFloat32) return v;
  if (type == RowType::kBFloat16) return ToFloat(FromFloat<__nv_bfloat16>(v));
  return ToFloat(FromFloat<__half>(v));
}

// One pack of each output's weights, from input `first` on, times each row's x, added to acc. Not there:
// packs, scales and x are taken as 0, which leaves acc as it is without a branch.
template <class W, typename X, int kRows, int kOutputs>
__device__ inline void AddPack(const uint4 (&packs)[kOutputs], const float (&scales)[kOutputs],
                               const X* const (&x)[kRows], int64_t first, bool there,
                               float (&acc)[kRows][kOutputs]) {
#pragma unroll
  for (int run = 0; run < W::kValues / W::kRun; ++run) {
    float w[kOutputs][W::kRun];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) W::Widen(packs[o], run, w[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Vector<X, W::kRun> v{};
      if (there) v = LoadVector<W::kRun>(x[r] + first + run * W::kRun);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        float sum = W::kRunScales ? 0.0f : acc[r][o];
#pragma unroll
        for (int j = 0; j < W::kRun; ++j) sum = fmaf(w[o][j], ToFloat(v.at[j]), sum);
        acc[r][o] = W::kRunScales ? fmaf(scales[o], sum, acc[r][o]) : sum;
      }
    }
  }
}

// The same sum for inputs [first, end) of a pack, by single values: of a row that is not aligned, or of what
// is left beyond the last whole pack.
template <class W, typename X>
__device__ inline float AddValues(const char* row, const char* scales, const X* x, int64_t first, int64_t end,
                                  float acc) {
#pragma unroll 1
  for (int64_t begin = first; begin < end; begin += W::kRun) {
    float sum = W::kRunScales ? 0.0f : acc;
#pragma unroll 1
    for (int64_t i = begin; i < end && i < begin + W::kRun; ++i) {
      sum = fmaf(W::Value(row, i), ToFloat(x[i]), sum);
    }
    acc = W::kRunScales ? fmaf(W::RunScale(scales, begin), sum, acc) : sum;
  }
  return acc;
}

// Sums kCount values over the warp, a butterfly each, in one go: as long as a lane has several, it hands half
// of them to its partner. Lane l ends with the sum of value l / (32 / kCount), in v[0].
template <int kCount, int kStep = kLanes / 2>
__device__ inline void WarpSums(float* v, int lane) {
  constexpr int kHalf = kCount / 2;
  const bool upper = (lane & kStep) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float kept = upper ? v[i + kHalf] : v[i], handed = upper ? v[i] : v[i + kHalf];
    v[i] = kept + __shfl_xor_sync(kAllLanes, handed, kStep);
  }
  if constexpr (kCount == 1) v[0] += __shfl_xor_sync(kAllLanes, v[0], kStep);
  if constexpr (kStep > 1) WarpSums<(kCount > 1 ? kHalf : 1), kStep / 2>(v, lane);
}

// N of one element, whose row needs no reduction: as UnitNorm::Apply has it.
__device__ inline float NormOfElement(const RowNorm& norm, const float* row_stat, int64_t row, int64_t i,
                                      float h) {
  const float stat = norm.numbers.stat == NormStat::kCarried ? row_stat[row] : 0.0f;
  float y = NormScale(norm.numbers, stat, 0.0f) * h;
  if (norm.numbers.phi == NormPhi::kTanh) y = tanhf(y);
  if (norm.gamma != nullptr) y *= norm.gamma[i];
  if (norm.beta != nullptr) y += norm.beta[i];
  return y;
}

// What becomes of one output's sum.
template <class W>
__device__ inline void FinishOutput(const CudaLinearRows& a, const WeightRows& weights, int64_t row,
                                    int64_t output, float sum) {
  float y = W::kRowScale ? W::RowScale(weights.Scales(output)) * sum : sum;
  if (a.bias != nullptr) y += a.bias[output];
  if (!a.has_residual) return StoreAs(a.y_type, y, a.y, row * a.y_stride + output);
  const int64_t at = row * a.h_stride + output;
  const float h = RoundAs(a.y_type, LoadAs(a.y_type, a.h, at) + RoundAs(a.y_type, y));
  StoreAs(a.y_type, h, a.h, at);
  if (!a.has_next) return;
  const float y_next = NormOfElement(a.next, a.row_stat, row, output, h);
  StoreAs(a.y_type, y_next, a.next_y, row * a.next_y_stride + output);
}

// One warp's rows and outputs, and their sums. Beyond the last row or output it takes the last one again, and
// does not store it. Neighbouring blocks have the tiles of rows of the same outputs, whose weights then come
// from the second-level cache.
template <class W, typename X, int kRows, int kOutputs>
class LinearTile {
 public:
  __device__ LinearTile(const CudaLinearRows& a, const WeightRows& weights, int rows)
      : a_(a), weights_(weights), rows_(rows), outputs_(static_cast<int>(a.outputs)) {
    const unsigned tiles = static_cast<unsigned>(rows + kRows - 1) / kRows, warp = threadIdx.x / kLanes;
    row_ = static_cast<int>(blockIdx.x % tiles) * kRows;
    output_ = static_cast<int>(blockIdx.x / tiles * kLinearWarps + warp) * kOutputs;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      w_[o] = weights.Row(output_ + o < outputs_ ? output_ + o : outputs_ - 1);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x_[r] = static_cast<const X*>(a.x) + (row_ + r < rows ? row_ + r : rows - 1) * a.x_stride;
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) acc_[r][o] = 0.0f;
    }
  }

  // False for a whole warp at once.
  __device__ bool HasOutputs() const { return output_ < outputs_; }
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  // Packs [0, whole). All lanes make the same number of turns.
  __device__ void AddPacks(int whole) {
    for (int turn = 0; turn < whole; turn += kDepth * kLanes) {
      uint4 packs[kDepth][kOutputs];
      float scales[kDepth][kOutputs];
#pragma unroll
      for (int d = 0; d < kDepth; ++d) Fetch(turn + d * kLanes + Lane(), whole, packs[d], scales[d]);
      // Keeps the compiler from putting a load off until its pack is wanted, to save registers: all of a
      // turn's loads are to be under way at once.
      __syncwarp();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int pack = turn + d * kLanes + Lane();
        AddPack<W>(packs[d], scales[d], x_, At(pack), pack < whole, acc_);
      }
    }
  }

  // One pack, or what there is of it, value by value.
  __device__ void AddByValues(int pack) {
    const int64_t end = At(pack + 1) < a_.inputs ? At(pack + 1) : a_.inputs;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        acc_[r][o] = AddValues<W>(w_[o], w_[o] + weights_.scales_at, x_[r], At(pack), end, acc_[r][o]);
      }
    }
  }

  // Sums over the lanes; one lane of each output writes it.
  __device__ void Finish() {
    constexpr int kCount = kRows * kOutputs, kHolders = kLanes / kCount;
    float sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = acc_[i / kOutputs][i % kOutputs];
    WarpSums<kCount>(sums, Lane());
    const int mine = Lane() / kHolders;
    const int row = row_ + mine / kOutputs, output = output_ + mine % kOutputs;
    if (Lane() % kHolders != 0 || row >= rows_ || output >= outputs_) return;
    FinishOutput<W>(a_, weights_, row, output, sums[0]);
  }

 private:
  static constexpr int kDepth = 4;  // packs of each output in flight

  __device__ static int64_t At(int pack) { return int64_t{W::kValues} * pack; }
  __device__ void Fetch(int pack, int whole, uint4 (&packs)[kOutputs], float (&scales)[kOutputs]) const {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      packs[o] = uint4{0, 0, 0, 0};
      scales[o] = 0.0f;
      if (pack >= whole) continue;
      packs[o] = LoadPack(w_[o] + 16 * static_cast<int64_t>(pack));
      scales[o] = W::RunScale(w_[o] + weights_.scales_at, At(pack));
    }
  }

  const CudaLinearRows& a_;
  const WeightRows& weights_;
  const int rows_, outputs_;
  int row_, output_;  // the first of each
  const char* w_[kOutputs];
  const X* x_[kRows];
  float acc_[kRows][kOutputs];
};

// Blocks that a multiprocessor is to hold at least: few enough that no tile spills registers.
constexpr int LinearBlocks(int sums) { return sums == 1 ? 7 : sums == 2 ? 5 : sums == 4 ? 4 : 2; }

// Rows of x and of weights begin at multiples of what one load takes.
template <class W, typename X, int kRows, int kOutputs>
__global__ void __launch_bounds__(kLinearThreads, LinearBlocks(kRows * kOutputs))
    LinearKernel(CudaLinearRows a, WeightRows weights, int rows) {
  WaitForLastKernel();
  LinearTile<W, X, kRows, kOutputs> tile(a, weights, rows);
  if (!tile.HasOutputs()) return;
  const int whole = static_cast<int>(a.inputs / W::kValues);
  tile.AddPacks(whole);
  if (tile.Lane() == whole % kLanes) tile.AddByValues(whole);
  tile.Finish();
}

// The same sums where they do not.
template <class W, typename X>
__global__ void __launch_bounds__(kLinearThreads) UnalignedLinearKernel(CudaLinearRows a, WeightRows weights,
                                                                        int rows) {
  WaitForLastKernel();
  LinearTile<W, X, 1, 1> tile(a, weights, rows);
  if (!tile.HasOutputs()) return;
  const int packs = static_cast<int>((a.inputs + W::kValues - 1) / W::kValues);
  for (int pack = tile.Lane(); pack < packs; pack += kLanes) tile.AddByValues(pack);
  tile.Finish();
}

}  // namespace normserve::kernels
