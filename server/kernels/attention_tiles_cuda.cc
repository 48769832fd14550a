// SPDX-License-Identifier: Apache-2.0
// Attention by tiles on a CUDA device: FlashInfer's kernel, where the build has it (NORMSERVE_FLASHINFER).
#include "kernels/cuda_rows.h"

namespace normserve::kernels {

#if defined(NORMSERVE_FLASHINFER)
std::string RunFlashInfer64(const AttentionTileArgs& args, CudaStream stream);   // attention_flashinfer_64.cu
std::string RunFlashInfer128(const AttentionTileArgs& args, CudaStream stream);  // attention_flashinfer_128.cu

std::string AttentionTilesFault(RowType type, int64_t head_dim) {
  if (type != RowType::kBFloat16) return "FlashInfer's kernel takes --dtype bfloat16 only";
  if (head_dim == 64 || head_dim == 128) return "";
  return "FlashInfer's kernel is built for heads of 64 and 128, this model's have " + std::to_string(head_dim);
}

std::string AttentionTilesCuda(const AttentionTileArgs& args, CudaStream stream) {
  const AttentionRows& a = args.rows;
  std::string fault = AttentionTilesFault(a.type, a.head_dim);
  if (!fault.empty()) return fault;
  if (a.out_stride != a.heads * a.head_dim) return "out is not packed";
  return a.head_dim == 64 ? RunFlashInfer64(args, stream) : RunFlashInfer128(args, stream);
}
#else
std::string AttentionTilesFault(RowType, int64_t) { return "this build has no FlashInfer"; }
std::string AttentionTilesCuda(const AttentionTileArgs&, CudaStream) { return "this build has no FlashInfer"; }
#endif

}  // namespace normserve::kernels
