// SPDX-License-Identifier: Apache-2.0
// The door to the kernels: every operator is registered, and refuses what its contract forbids.
#include "kernels/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/large_pages.h"

namespace normserve::kernels {
namespace {

TEST(Ops, EveryOperatorHasItsCpuKernel) {
  EXPECT_TRUE(MissingKernels(at::kCPU).empty());
  EXPECT_EQ(MissingKernels(at::kCUDA).size(), 11u);
}

TEST(LargePages, TensorsAreZeroApartAndOutliveEachOther) {
  std::vector<at::Tensor> all;
  for (const int64_t rows : {1, 3, 1000, 20000}) {  // the last is larger than a mapping
    all.push_back(ZerosInLargePages({rows, 1001}, at::kFloat));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back().data_ptr()) % 64, 0u);
    EXPECT_TRUE(at::equal(all.back(), at::zeros_like(all.back())));
    all.back().fill_(static_cast<float>(rows));
  }
  for (const at::Tensor& t : all) {
    EXPECT_TRUE(at::equal(t, at::full_like(t, static_cast<float>(t.size(0)))));
  }
  const at::Tensor kept = all[1];
  all.clear();
  EXPECT_TRUE(at::equal(kept, at::full({3, 1001}, 3.0f)));
}

#if !defined(__SANITIZE_ADDRESS__)  // whose allocator ends the process
TEST(LargePages, NoAddressSpaceIsAnError) {
  EXPECT_THROW(ZerosInLargePages({int64_t{1} << 50}, at::kFloat), c10::Error);
}
#endif

TEST(Ops, LinearMatchesAten) {
  for (const int64_t m : {1, 2, 5, 13, 100}) {
    for (const int64_t n : {1, 16, 50, 200}) {
      const at::Tensor x = at::randn({m, 37}), w = at::randn({n, 37}), b = at::randn({n});
      at::Tensor y = at::empty({m, n});
      Linear(x, PackWeight(w, WeightFormat::kFloat32), b, y);
      EXPECT_TRUE(at::allclose(y, at::linear(x, w, b), 1e-5, 1e-5)) << m << " " << n;
    }
  }
}

TEST(Ops, RmsNormMatchesAten) {
  const at::Tensor x = at::randn({5, 100}), w = at::randn({100});
  Norm norm;
  norm.numbers.stat = NormStat::kMeanSquare;
  norm.numbers.eps = 1e-5f;
  norm.gamma = w;
  at::Tensor y = at::empty_like(x), stat = at::zeros({5});
  NormOp(x, norm, stat, y);
  EXPECT_TRUE(at::allclose(y, at::rms_norm(x, {100}, w, 1e-5), 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(stat, x.square().mean(1)));
}

TEST(Ops, ActivateMatchesAten) {
  const at::Tensor x = at::randn({5, 200}) * 4;
  at::Tensor y = at::empty({5, 100}), g = at::empty({5, 200});
  Activate(x, Activation::kSiluGate, std::nullopt, std::nullopt, y);
  EXPECT_TRUE(at::allclose(y, at::silu(x.slice(1, 0, 100)) * x.slice(1, 100), 1e-6, 1e-6));
  Activate(x, Activation::kGeluErf, std::nullopt, std::nullopt, g);
  EXPECT_TRUE(at::allclose(g, at::gelu(x), 1e-6, 1e-6));
}

TEST(Ops, AttentionMatchesAten) {
  const int64_t heads = 6, kv = 2, dim = 20, block = 16, context = 40;
  AttentionShape shape{heads, kv, dim, block};
  at::Tensor qkv = at::randn({context, (heads + 2 * kv) * dim});
  at::Tensor kc = at::full({5, kv, dim, block}, NAN), vc = at::full({5, kv, block, dim}, NAN);
  const at::Tensor pos = at::arange(context, at::kInt);
  const at::Tensor table = at::tensor({3, 1, 4}, at::kInt).view({1, 3});
  const at::Tensor slots =
      (table.index_select(1, pos.floor_divide(block).to(at::kInt)).view({-1}) * block +
       pos.remainder(block)).to(at::kInt);
  QkvNormRotaryWrite(qkv, {}, at::Tensor(), RotaryPairs::kNone, pos, slots, shape, kc, vc);
  at::Tensor out = at::empty({context, heads * dim});
  PagedAttention(qkv, kc, vc, table, at::zeros({context}, at::kInt), pos, {}, {}, 0.3f, shape, out);
  const auto split = [&](int64_t at, int64_t n) {
    return qkv.slice(1, at * dim, (at + n) * dim).view({context, n, dim}).transpose(0, 1);
  };
  const at::Tensor q = split(0, heads);
  const at::Tensor k = split(heads, kv).repeat_interleave(heads / kv, 0);
  const at::Tensor v = split(heads + kv, kv).repeat_interleave(heads / kv, 0);
  const at::Tensor s = at::matmul(q, k.transpose(1, 2)) * 0.3 +
                       at::full({context, context}, -INFINITY).triu(1);
  const at::Tensor r = at::matmul(at::softmax(s, -1), v).transpose(0, 1).reshape({context, -1});
  EXPECT_TRUE(at::allclose(out, r, 1e-5, 1e-5)) << (out - r).abs().max();
}

}  // namespace
}  // namespace normserve::kernels
