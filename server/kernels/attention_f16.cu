// SPDX-License-Identifier: Apache-2.0
// Attention of float16 activations on a float16 cache.
#include "kernels/attention_launch.cuh"

namespace normserve::kernels {

void LaunchAttentionF16(const AttentionRows& args, const AttentionPlan& plan, int64_t tokens,
                        CudaStream stream) {
  RunAttention<__half, __half>(args, plan, tokens, stream);
}

}  // namespace normserve::kernels
