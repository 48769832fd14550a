// SPDX-License-Identifier: Apache-2.0
// Attention of bfloat16 activations on a bfloat16 cache.
#include "kernels/attention_launch.cuh"

namespace normserve::kernels {

void LaunchAttentionBf16(const AttentionRows& args, const AttentionPlan& plan, int64_t tokens,
                         CudaStream stream) {
  RunAttention<__nv_bfloat16, __nv_bfloat16>(args, plan, tokens, stream);
}

}  // namespace normserve::kernels
