// SPDX-License-Identifier: Apache-2.0
// What attention.cu decides about a launch, and who carries it out: one function per pair of types, each pair
// in a file of its own, so that nvcc compiles them side by side and attention.cu without any kernel.
#pragma once

#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {

constexpr int kAttentionThreads = 128;
constexpr int kSplit = 512;  // positions

// Which rows share a block: those that read the same keys and values. Tokens of another sequence
// that fall into the block take their turn after the first one's.
struct AttentionPlan {
  int heads = 1;   // of one kv head
  int tokens = 1;  // neighbours in the batch
  int parts = 1;   // blocks per kv head
  int splits = 1;  // of the longest context
  float* partial = nullptr;  // [tokens, heads, splits, head_dim]; null: blocks merge their splits
  float* stats = nullptr;    // [tokens, heads, splits, 2]: maximum and sum
};

using LaunchAttention = void(const AttentionRows& args, const AttentionPlan& plan, int64_t tokens,
                             CudaStream stream);
LaunchAttention LaunchAttentionBf16;            // attention_bf16.cu
LaunchAttention LaunchAttentionF16;             // attention_f16.cu
LaunchAttention LaunchAttentionF32;             // attention_f32.cu
LaunchAttention LaunchAttentionF32OnBf16Cache;  // attention_f32.cu

}  // namespace normserve::kernels
