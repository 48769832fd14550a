// SPDX-License-Identifier: Apache-2.0
// Launches of the norm kernels: type, width and alignment choose the instance. Compiled without
// fused multiply-add contraction (nvcc -fmad=false), so that an expression means the same in every
// kernel.
#include "kernels/norm.cuh"

#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

// Whether every row begins at a multiple of 16 bytes.
template <typename T>
bool RowsAligned(const void* p, int64_t stride) {
  return Aligned(p) && stride % kPackWidth<T> == 0;
}

// ReducedGroup of two norms in one pass; their units must agree.
int64_t SharedGroup(const ResidualRows& a) {
  const int64_t out = a.has_out ? ReducedGroup(a.out, a.width) : 0;
  const int64_t next = a.has_next ? ReducedGroup(a.next, a.width) : 0;
  return out > 0 ? out : next;
}
bool GroupsDiffer(const ResidualRows& a) {
  if (!a.has_out || !a.has_next) return false;
  const int64_t out = ReducedGroup(a.out, a.width), next = ReducedGroup(a.next, a.width);
  return out > 0 && next > 0 && out != next;
}

template <typename T>
void LaunchNorm(const NormRows& a, int64_t rows, CudaStream stream) {
  const bool aligned = RowsAligned<T>(a.x, a.x_stride) && RowsAligned<T>(a.y, a.y_stride) &&
                       Aligned(a.norm);
  const UnitPlan plan = PlanUnits<T>(a.width, ReducedGroup(a.norm, a.width), aligned);
  WithPacks<T>(plan.packs, [&](auto packs) {
    launch(NormKernel<T, decltype(packs)::value>, UnitGrid(plan, rows), UnitBlock(plan), kSumBytes,
           stream, a, rows, plan);
  });
}

template <typename T>
void LaunchResidual(const ResidualRows& a, int64_t rows, CudaStream stream) {
  bool aligned = RowsAligned<T>(a.h, a.h_stride) && RowsAligned<T>(a.delta, a.delta_stride);
  if (a.has_out) aligned = aligned && Aligned(a.out);
  if (a.has_next) aligned = aligned && RowsAligned<T>(a.y, a.y_stride) && Aligned(a.next);
  const UnitPlan plan = PlanUnits<T>(a.width, SharedGroup(a), aligned);
  WithPacks<T>(plan.packs, [&](auto packs) {
    launch(ResidualKernel<T, decltype(packs)::value>, UnitGrid(plan, rows), UnitBlock(plan),
           kSumBytes, stream, a, rows, plan);
  });
}

}  // namespace

void NormRowsCuda(const NormRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.width == 0) return;
  WithRowType(args.type, [&](auto zero) { LaunchNorm<decltype(zero)>(args, rows, stream); });
}

void ResidualRowsCuda(const ResidualRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.width == 0) return;
  if (GroupsDiffer(args)) {
    // No model has this: two kernels, the same bits.
    ResidualRows add = args;
    add.has_next = false;
    ResidualRowsCuda(add, rows, stream);
    const NormRows norm = {args.type,     args.h,     args.h_stride, args.y, args.y_stride,
                           args.row_stat, args.width, args.next};
    return NormRowsCuda(norm, rows, stream);
  }
  WithRowType(args.type, [&](auto zero) { LaunchResidual<decltype(zero)>(args, rows, stream); });
}

}  // namespace normserve::kernels
