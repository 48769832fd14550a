// SPDX-License-Identifier: Apache-2.0
// Attention of float32 activations, on a cache of float32 or bfloat16.
#include "kernels/attention_launch.cuh"

namespace normserve::kernels {

void LaunchAttentionF32(const AttentionRows& args, const AttentionPlan& plan, int64_t tokens,
                        CudaStream stream) {
  RunAttention<float, float>(args, plan, tokens, stream);
}

void LaunchAttentionF32OnBf16Cache(const AttentionRows& args, const AttentionPlan& plan, int64_t tokens,
                                   CudaStream stream) {
  RunAttention<float, __nv_bfloat16>(args, plan, tokens, stream);
}

}  // namespace normserve::kernels
