// SPDX-License-Identifier: Apache-2.0
// QkvNormRotaryWrite on a CUDA device: how a token's projection is cut into blocks, and the launch.
#include <algorithm>

#include "kernels/cuda_rows.h"
#include "kernels/qkv.cuh"

namespace normserve::kernels {
namespace {

// Elements that are worth a block of their own, and the shared memory that needs no opt-in.
constexpr int kTargetUnit = 2048;
constexpr int kSharedBytes = 48 * 1024;

int GroupWidth(const QkvRows& a, int part, int width) {
  const int group = a.norm[part].numbers.group_width;
  return group > 0 ? group : width;
}

QkvPlan MakePlan(const QkvRows& a, int element_bytes, int* threads, int* shared) {
  QkvPlan plan;
  int staged = 0, groups = 0, longest = 0;
  for (int part = 0; part < 3; ++part) {
    const int dim = static_cast<int>(a.head_dim);
    const int width = static_cast<int>(part == 0 ? a.heads : a.kv_heads) * dim;
    const int group = a.has_norm[part] ? GroupWidth(a, part, width) : dim;
    const int step = std::max(dim, group);
    const int unit = std::min(width, (kTargetUnit + step - 1) / step * step);
    plan.unit[part] = unit;
    plan.units[part] = (width + unit - 1) / unit;
    longest = std::max(longest, unit);
    if (!a.has_norm[part]) continue;
    staged = std::max(staged, unit * element_bytes);
    groups = std::max(groups, unit / group * static_cast<int>(sizeof(QkvGroup)));
  }
  plan.stage_bytes = (staged + 15) / 16 * 16;
  const int others = groups + kQkvPartials * static_cast<int>(sizeof(float));
  plan.staged = plan.stage_bytes + others <= kSharedBytes;
  if (!plan.staged) plan.stage_bytes = 0;
  *shared = plan.stage_bytes + others;
  const int chunks = longest * element_bytes / 16;
  *threads = std::clamp((chunks + 31) / 32 * 32, 64, kQkvMaxThreads);
  return plan;
}

// Whether every access of `v` elements is aligned.
bool Vectorises(const QkvRows& a, int v, int element_bytes, int cache_bytes) {
  const int64_t run = a.rotary ? a.head_dim / 2 : a.head_dim;
  bool ok = run % v == 0 && a.qkv_stride % v == 0 && AlignedTo(a.qkv, v * element_bytes) &&
            AlignedTo(a.v_cache, v * cache_bytes) &&
            (!a.keys_by_position || AlignedTo(a.k_cache, v * cache_bytes));
  if (a.rotary) ok = ok && AlignedTo(a.cos_sin, 16) && a.cos_sin_stride % 4 == 0;
  for (int part = 0; part < 3; ++part) {
    if (!a.has_norm[part]) continue;
    ok = ok && a.norm[part].numbers.group_width % v == 0 &&
         AlignedTo(a.norm[part].gamma, 16) && AlignedTo(a.norm[part].beta, 16);
  }
  return ok;
}

template <typename T, typename C>
void Run(const QkvRows& a, int64_t tokens, CudaStream stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  int threads = 0, shared = 0;
  const QkvPlan plan = MakePlan(a, sizeof(T), &threads, &shared);
  const dim3 grid(static_cast<unsigned>(tokens),
                  static_cast<unsigned>(plan.units[0] + plan.units[1] + plan.units[2]));
  const auto kernel = Vectorises(a, kVector, sizeof(T), sizeof(C)) ? QkvKernel<T, C, kVector>
                                                                   : QkvKernel<T, C, 1>;
  launch(kernel, grid, dim3(static_cast<unsigned>(threads)), static_cast<size_t>(shared), stream, a,
         plan);
}

}  // namespace

void QkvRowsCuda(const QkvRows& args, int64_t tokens, CudaStream stream) {
  if (tokens == 0) return;
  switch (args.type) {
    case RowType::kBFloat16: return Run<__nv_bfloat16, __nv_bfloat16>(args, tokens, stream);
    case RowType::kFloat16: return Run<__half, __half>(args, tokens, stream);
    case RowType::kFloat32: break;
  }
  if (args.cache_type == RowType::kBFloat16) return Run<float, __nv_bfloat16>(args, tokens, stream);
  Run<float, float>(args, tokens, stream);
}

}  // namespace normserve::kernels
