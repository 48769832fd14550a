// SPDX-License-Identifier: Apache-2.0
// LinearRowsInOrder: LinearRowsCuda by one thread. Of the kernel it has the sum of a pack by values and
// what becomes of an output; lanes and their butterfly are loops. For products that would keep fibers busy
// for minutes: the test of the kernel holds both to the same bits.
#include "kernels/cuda_rows.h"
#include "kernels/linear.cuh"

namespace normserve::kernels {
namespace {

template <class W, typename X>
float SumInOrder(const char* row, const char* scales, const X* x, int64_t inputs) {
  float lanes[kLanes] = {};
  for (int64_t first = 0, lane = 0; first < inputs; first += W::kValues, lane = (lane + 1) % kLanes) {
    const int64_t end = first + W::kValues < inputs ? first + W::kValues : inputs;
    lanes[lane] = AddValues<W>(row, scales, x, first, end, lanes[lane]);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  return lanes[0];
}

// One thread; a kernel so that it is recorded and counted as one.
template <class W, typename X>
__global__ void InOrderKernel(CudaLinearRows a, WeightRows weights, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
    for (int64_t o = 0; o < a.outputs; ++o) {
      FinishOutput<W>(a, weights, row, o, SumInOrder<W>(weights.Row(o), weights.Scales(o), x, a.inputs));
    }
  }
}

}  // namespace

void LinearRowsInOrder(const CudaLinearRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.outputs == 0) return;
  const WeightRows weights = WeightRowsOf(args.format, args.weight, args.weight_stride, args.inputs);
  WithWeights(args.format, [&](auto reader) {
    using W = decltype(reader);
    const bool wide = args.x_type == RowType::kFloat32;
    launch(wide ? InOrderKernel<W, float> : InOrderKernel<W, __nv_bfloat16>, dim3(1), dim3(1), 0, stream, args,
           weights, rows);
  });
}

}  // namespace normserve::kernels
