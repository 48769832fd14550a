// SPDX-License-Identifier: Apache-2.0
// Which models --attention flashinfer takes on a CUDA device, and what is said of the others.
#include <gtest/gtest.h>

#include "kernels/cuda_rows.h"

namespace normserve::kernels {

std::string RunFlashInfer64(const AttentionTileArgs&, CudaStream) { return "64"; }
std::string RunFlashInfer128(const AttentionTileArgs&, CudaStream) { return "128"; }

namespace {

TEST(AttentionTilesFault, NamesWhatIsTaken) {
  EXPECT_EQ(AttentionTilesFault(RowType::kBFloat16, 64), "");
  EXPECT_EQ(AttentionTilesFault(RowType::kBFloat16, 128), "");
  EXPECT_EQ(AttentionTilesFault(RowType::kFloat32, 64), "FlashInfer's kernel takes --dtype bfloat16 only");
  EXPECT_EQ(AttentionTilesFault(RowType::kFloat16, 64), "FlashInfer's kernel takes --dtype bfloat16 only");
  EXPECT_EQ(AttentionTilesFault(RowType::kBFloat16, 80),
            "FlashInfer's kernel is built for heads of 64 and 128, this model's have 80");
}

TEST(AttentionTilesCuda, GoesToTheInstanceOfTheHeadsSize) {
  AttentionTileArgs args;
  args.rows.type = args.rows.cache_type = RowType::kBFloat16;
  args.rows.heads = 2;
  for (const int64_t dim : {64, 128}) {
    args.rows.head_dim = dim;
    args.rows.out_stride = 2 * dim;
    EXPECT_EQ(AttentionTilesCuda(args, nullptr), std::to_string(dim));
  }
  args.rows.out_stride = 300;
  EXPECT_EQ(AttentionTilesCuda(args, nullptr), "out is not packed");
  args.rows.head_dim = 80;
  EXPECT_EQ(AttentionTilesCuda(args, nullptr), AttentionTilesFault(RowType::kBFloat16, 80));
}

}  // namespace
}  // namespace normserve::kernels
