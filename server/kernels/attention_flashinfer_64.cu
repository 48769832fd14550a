// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_flashinfer.cuh"

namespace normserve::kernels {

std::string RunFlashInfer64(const AttentionTileArgs& args, CudaStream stream) {
  return RunFlashInfer<64>(args, stream);
}

}  // namespace normserve::kernels
