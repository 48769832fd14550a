// SPDX-License-Identifier: Apache-2.0
// Launches of the linear kernels: formats, alignment, and how many rows and outputs a warp takes. Compiled
// without contraction of multiply-adds, as norm.cu.
#include "kernels/linear.cuh"

#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

// From this many outputs on, half the warps keep a device as busy, and a warp with two outputs reads and
// widens x half as often. A choice of speed alone.
constexpr int64_t kManyOutputs = 8192;

dim3 LinearGrid(int64_t rows, int64_t tile_rows, int64_t outputs, int64_t tile_outputs) {
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows, per_block = kLinearWarps * tile_outputs;
  return dim3(static_cast<unsigned>(tiles * ((outputs + per_block - 1) / per_block)));
}

template <class W, typename X, int kRows, int kOutputs>
void LaunchTiles(const CudaLinearRows& a, const WeightRows& weights, int64_t rows, CudaStream stream) {
  launch(LinearKernel<W, X, kRows, kOutputs>, LinearGrid(rows, kRows, a.outputs, kOutputs),
         dim3(kLinearThreads), 0, stream, a, weights, static_cast<int>(rows));
}

// Rows beyond 8 are a second tile: what it reads of the weights is in the second-level cache, and with so
// many rows the multiply-adds take longer than the memory.
template <class W, typename X>
void LaunchLinear(const CudaLinearRows& a, int64_t rows, CudaStream stream) {
  const WeightRows weights = WeightRowsOf(a.format, a.weight, a.weight_stride, a.inputs);
  constexpr int64_t kLoad = W::kRun * static_cast<int64_t>(sizeof(X));
  const bool aligned = AlignedTo(a.weight, 16) && a.weight_stride % 16 == 0 && AlignedTo(a.x, kLoad) &&
                       AlignedStride<X>(a.x_stride, kLoad);
  if (!aligned) {
    return launch(UnalignedLinearKernel<W, X>, LinearGrid(rows, 1, a.outputs, 1), dim3(kLinearThreads), 0,
                  stream, a, weights, static_cast<int>(rows));
  }
  if (rows == 1 && a.outputs < kManyOutputs) return LaunchTiles<W, X, 1, 1>(a, weights, rows, stream);
  if (rows == 1) return LaunchTiles<W, X, 1, 2>(a, weights, rows, stream);
  if (rows == 2) return LaunchTiles<W, X, 2, 2>(a, weights, rows, stream);
  if (rows <= 4) return LaunchTiles<W, X, 4, 2>(a, weights, rows, stream);
  LaunchTiles<W, X, 8, 2>(a, weights, rows, stream);
}

}  // namespace

bool LinearTakesResidual(const RowNorm& next) {
  return !NeedsMean(next.numbers) && !MeasuresStat(next.numbers);
}

void LinearRowsCuda(const CudaLinearRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.outputs == 0) return;
  WithWeights(args.format, [&](auto weights) {
    using W = decltype(weights);
    if (args.x_type == RowType::kFloat32) return LaunchLinear<W, float>(args, rows, stream);
    LaunchLinear<W, __nv_bfloat16>(args, rows, stream);
  });
}

}  // namespace normserve::kernels
