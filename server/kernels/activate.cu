// SPDX-License-Identifier: Apache-2.0
// Launches of Activate: type, width, alignment and gating choose the instance. Compiled as norm.cu
// is.
#include "kernels/activate.cuh"

#include <numeric>

#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

struct Groups {
  int64_t gate = 0, up = 0;  // ReducedGroup of each, 0 without a norm
};
Groups GroupsOf(const ActivateRows& a) {
  Groups groups;
  if (a.has_gate_norm) groups.gate = ReducedGroup(a.gate, a.width);
  if (a.gated && a.has_up_norm) groups.up = ReducedGroup(a.up, a.width);
  return groups;
}

template <typename T>
bool AllAligned(const ActivateRows& a) {
  return Aligned(a.x) && Aligned(a.y) && a.x_stride % kPackWidth<T> == 0 &&
         a.y_stride % kPackWidth<T> == 0 && Aligned(a.gate) && Aligned(a.up);
}

template <typename T>
void LaunchActivate(const ActivateRows& a, int64_t rows, CudaStream stream) {
  const Groups groups = GroupsOf(a);
  if (groups.gate > 0 && groups.up > 0 && groups.gate != groups.up) {
    const int64_t piece = std::gcd(groups.gate, groups.up);
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(a.width / piece));
    return launch(ActivateMixedKernel<T>, grid, dim3(kWarp), 0, stream, a, piece);
  }
  const int64_t group = groups.gate > 0 ? groups.gate : groups.up;
  const UnitPlan plan = PlanUnits<T>(a.width, group, AllAligned<T>(a));
  WithPacks<T>(plan.packs, [&](auto packs) {
    constexpr int kPacks = decltype(packs)::value;
    launch(a.gated ? ActivateKernel<T, kPacks, true> : ActivateKernel<T, kPacks, false>,
           UnitGrid(plan, rows), UnitBlock(plan), kSumBytes, stream, a, rows, plan);
  });
}

}  // namespace

void ActivateRowsCuda(const ActivateRows& args, int64_t rows, CudaStream stream) {
  if (rows == 0 || args.width == 0) return;
  WithRowType(args.type, [&](auto zero) { LaunchActivate<decltype(zero)>(args, rows, stream); });
}

}  // namespace normserve::kernels
