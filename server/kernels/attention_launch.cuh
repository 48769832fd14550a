// SPDX-License-Identifier: Apache-2.0
// The launches of attention for one pair of types; attention_*.cu have one pair or two each, because an
// instance of the kernel takes nvcc seconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/attention.cuh"

namespace normserve::kernels {

// A is the type of q and out, T that of the caches.
template <typename A, typename T>
void RunAttention(const AttentionRows& a, const AttentionPlan& plan, int64_t tokens,
                  CudaStream stream) {
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

}  // namespace normserve::kernels
