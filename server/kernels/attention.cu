// SPDX-License-Identifier: Apache-2.0
// PagedAttention on a CUDA device: which rows share a block, where the splits are merged, and the
// launches. Nothing chosen here changes a bit of the result.
#include <algorithm>
#include <type_traits>

#include "kernels/attention.cuh"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

// Blocks that keep a large device busy: below, rows are spread out rather than put together.
constexpr int64_t kEnoughBlocks = 528;
// 128 MiB. Past it there are so many rows that each may well merge its own splits.
constexpr int64_t kMaxScratchFloats = int64_t{32} << 20;

int64_t PartialFloats(const AttentionRows& a, int64_t tokens, int64_t splits) {
  return tokens * a.heads * splits * a.head_dim;
}

AttentionPlan MakePlan(const AttentionRows& a, int64_t tokens, int64_t max_context,
                       float* scratch) {
  AttentionPlan plan;
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int most = a.head_dim <= 256 ? 8 : 4;  // rows, for the sake of shared memory
  plan.parts = (group + most - 1) / most;
  plan.heads = (group + plan.parts - 1) / plan.parts;
  const auto blocks = [&](int64_t shared) {
    return (tokens + shared - 1) / shared * a.kv_heads * plan.parts;
  };
  while (plan.heads * plan.tokens * 2 <= most && blocks(plan.tokens * 2) >= kEnoughBlocks) {
    plan.tokens *= 2;
  }
  plan.splits = static_cast<int>((max_context + kSplit - 1) / kSplit);
  if (scratch != nullptr && plan.splits > 1) {
    plan.partial = scratch;
    plan.stats = scratch + PartialFloats(a, tokens, plan.splits);
  }
  return plan;
}

template <typename A, typename T>
void Run(const AttentionRows& a, const AttentionPlan& plan, int64_t tokens, CudaStream stream) {
  const dim3 grid(static_cast<unsigned>((tokens + plan.tokens - 1) / plan.tokens),
                  static_cast<unsigned>(a.kv_heads * plan.parts),
                  static_cast<unsigned>(plan.partial != nullptr ? plan.splits : 1));
  const bool wide = a.head_dim % (16 / static_cast<int64_t>(sizeof(T))) == 0 &&
                    reinterpret_cast<uintptr_t>(a.v_cache) % 16 == 0;
  const auto run = [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    const size_t floats = static_cast<size_t>(kRows * (2 * a.head_dim + kSplit));
    launch(AttentionKernel<kRows, A, T>, grid, dim3(kAttentionThreads),
           sizeof(AttentionShared<kRows>) + floats * sizeof(float), stream, a, plan, tokens, wide);
  };
  switch (plan.heads * plan.tokens) {
    case 1: run(std::integral_constant<int, 1>()); break;
    case 2: run(std::integral_constant<int, 2>()); break;
    case 3: run(std::integral_constant<int, 3>()); break;
    case 4: run(std::integral_constant<int, 4>()); break;
    case 5:
    case 6: run(std::integral_constant<int, 6>()); break;
    default: run(std::integral_constant<int, 8>()); break;
  }
  if (plan.partial == nullptr) return;
  const int64_t threads = std::min<int64_t>((a.head_dim + 31) / 32 * 32, kAttentionThreads);
  launch(AttentionMergeKernel<A>,
         dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(a.heads)),
         dim3(static_cast<unsigned>(threads)), 0, stream, a, plan);
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionRows& args, int64_t tokens, int64_t max_context) {
  const int64_t splits = (max_context + kSplit - 1) / kSplit;
  const int64_t floats = PartialFloats(args, tokens, splits) + tokens * args.heads * splits * 2;
  return splits > 1 && floats <= kMaxScratchFloats ? floats : 0;
}

void AttentionRowsCuda(const AttentionRows& args, int64_t tokens, int64_t max_context,
                       float* scratch, CudaStream stream) {
  if (tokens == 0) return;
  const AttentionPlan plan = MakePlan(args, tokens, max_context, scratch);
  switch (args.type) {
    case RowType::kBFloat16:
      return Run<__nv_bfloat16, __nv_bfloat16>(args, plan, tokens, stream);
    case RowType::kFloat16: return Run<__half, __half>(args, plan, tokens, stream);
    case RowType::kFloat32: break;
  }
  if (args.cache_type == RowType::kBFloat16) {
    return Run<float, __nv_bfloat16>(args, plan, tokens, stream);
  }
  Run<float, float>(args, plan, tokens, stream);
}

}  // namespace normserve::kernels
