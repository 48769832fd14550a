// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that widen quantised weights.
#include "kernels/widen.cuh"

#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

dim3 WidenGrid(int64_t rows, int64_t width, int v) {
  const int64_t per_block = int64_t{kWidenThreads} * v;
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>((width + per_block - 1) / per_block));
}

template <class W, typename T>
void Widen(const WidenRows& a, int64_t rows, CudaStream stream) {
  const WeightRows weights = WeightRowsOf(a.format, a.weight, a.weight_stride, a.inputs);
  const bool aligned = AlignedTo(a.weight, 16) && a.weight_stride % 16 == 0 && AlignedTo(a.out, 16);
  if (aligned && a.inputs % W::kRun == 0) {
    return launch(WidenKernel<W, T, W::kRun>, WidenGrid(rows, a.inputs, W::kRun), dim3(kWidenThreads), 0,
                  stream, a, weights);
  }
  launch(WidenKernel<W, T, 1>, WidenGrid(rows, a.inputs, 1), dim3(kWidenThreads), 0, stream, a, weights);
}

}  // namespace

void WidenWeightCuda(const WidenRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.inputs == 0) return;
  WithQuantisedWeights(args.format, [&](auto weights) {
    using W = decltype(weights);
    if (args.out_type == RowType::kFloat32) return Widen<W, float>(args, rows, stream);
    Widen<W, __nv_bfloat16>(args, rows, stream);
  });
}

void EmbedQuantisedCuda(const EmbedRows& args, int64_t tokens, CudaStream stream) {
  const WeightRows weights = WeightRowsOf(args.table_format, args.table,
                                          LinearRowBytes(args.table_format, args.width), args.width);
  WithQuantisedWeights(args.table_format, [&](auto reader) {
    WithRowType(args.out_type, [&](auto zero) {
      launch(EmbedQuantisedKernel<decltype(reader), decltype(zero)>, WidenGrid(tokens, args.width, 1),
             dim3(kWidenThreads), 0, stream, args, weights);
    });
  });
}

}  // namespace normserve::kernels
