// SPDX-License-Identifier: Apache-2.0
// PagedAttention on a CUDA device: which rows share a block, and where the splits are merged. Nothing
// chosen here changes a bit of the result.
#include "kernels/attention_plan.h"

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
    case RowType::kBFloat16: return LaunchAttentionBf16(args, plan, tokens, stream);
    case RowType::kFloat16: return LaunchAttentionF16(args, plan, tokens, stream);
    case RowType::kFloat32: break;
  }
  if (args.cache_type == RowType::kBFloat16) {
    return LaunchAttentionF32OnBf16Cache(args, plan, tokens, stream);
  }
  LaunchAttentionF32(args, plan, tokens, stream);
}

}  // namespace normserve::kernels
