// SPDX-License-Identifier: Apache-2.0
// Embed and GatherRows on a CUDA device: vector width and types. Indices are not checked here: they
// are the device's, and whoever made them has.
#include "kernels/cuda_rows.h"
#include "kernels/gather.cuh"

namespace normserve::kernels {
namespace {

template <class Args>
void Launch(void (*kernel)(Args), const Args& args, int64_t rows, int v, CudaStream stream) {
  const int64_t per_block = int64_t{kGatherThreads} * v;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((args.width + per_block - 1) / per_block));
  launch(kernel, grid, dim3(kGatherThreads), 0, stream, args);
}

template <typename W, typename T>
void Embed(const EmbedRows& a, int64_t tokens, CudaStream stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(W) > sizeof(T) ? sizeof(W) : sizeof(T));
  if (a.width % kVector == 0 && a.out_stride % kVector == 0 &&
      AlignedTo(a.table, kVector * sizeof(W)) && AlignedTo(a.out, kVector * sizeof(T)) &&
      AlignedTo(a.positions_table, kVector * sizeof(float))) {
    return Launch(EmbedKernel<W, T, kVector>, a, tokens, kVector, stream);
  }
  Launch(EmbedKernel<W, T, 1>, a, tokens, 1, stream);
}

template <typename W>
void EmbedFrom(const EmbedRows& a, int64_t tokens, CudaStream stream) {
  switch (a.out_type) {
    case RowType::kFloat32: return Embed<W, float>(a, tokens, stream);
    case RowType::kBFloat16: return Embed<W, __nv_bfloat16>(a, tokens, stream);
    case RowType::kFloat16: return Embed<W, __half>(a, tokens, stream);
  }
}

template <typename T>
void Gather(const GatherArgs& a, int64_t count, CudaStream stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  if (a.width % kVector == 0 && a.x_stride % kVector == 0 && a.out_stride % kVector == 0 &&
      AlignedTo(a.x, 16) && AlignedTo(a.out, 16)) {
    return Launch(GatherKernel<T, kVector>, a, count, kVector, stream);
  }
  Launch(GatherKernel<T, 1>, a, count, 1, stream);
}

}  // namespace

void EmbedRowsCuda(const EmbedRows& args, int64_t tokens, CudaStream stream) {
  if (tokens == 0) return;
  if (IsQuantised(args.table_format)) return EmbedQuantisedCuda(args, tokens, stream);
  switch (args.table_type) {
    case RowType::kFloat32: return EmbedFrom<float>(args, tokens, stream);
    case RowType::kBFloat16: return EmbedFrom<__nv_bfloat16>(args, tokens, stream);
    case RowType::kFloat16: return EmbedFrom<__half>(args, tokens, stream);
  }
}

void GatherRowsCuda(const GatherArgs& args, int64_t count, CudaStream stream) {
  if (count == 0) return;
  if (args.type == RowType::kFloat32) return Gather<uint32_t>(args, count, stream);
  Gather<uint16_t>(args, count, stream);
}

}  // namespace normserve::kernels
