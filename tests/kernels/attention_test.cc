// SPDX-License-Identifier: Apache-2.0
// PagedAttention against the double oracle.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

// One sequence of `context` tokens in a fresh cache, attended from `positions`.
struct Sequence {
  AttentionShape shape;
  Cache cache;
  at::Tensor qkv, positions;

  // Values that both types hold exactly, so that what the oracle reads is what the cache has.
  Sequence(const AttentionShape& s, Types types, int64_t context, uint32_t seed)
      : shape(s), cache(s, types.cache, 1, context, seed),
        qkv(at::randn({context, (s.heads + 2 * s.kv_heads) * s.head_dim})
                .to(types.cache)
                .to(types.act)),
        positions(at::arange(context, at::kInt)) {
    QkvNormRotaryWrite(qkv, {}, {}, RotaryPairs::kNone, positions, cache.Slots(0, positions), s,
                       cache.k, cache.v);
  }
  at::Tensor Attend(const at::Tensor& rows, Layout layout = Layout::kContiguous) const {
    Guarded out(rows.numel(), shape.heads * shape.head_dim, qkv.scalar_type(), layout);
    const at::Tensor zeros = at::zeros_like(rows);
    PagedAttention(qkv.index_select(0, rows), cache.k, cache.v, cache.tables, zeros,
                   positions.index_select(0, rows), {}, {}, 0.25f, shape, out.view());
    out.ExpectBandIntact("out");
    return out.view().contiguous();
  }
};

TEST(PagedAttention, ImplementationsAgree) {
  at::manual_seed(3);
  const std::vector<std::string> targets = SimdTargets();
  const at::Tensor rows = at::tensor({0, 1, 15, 16, 17, 63, 64, 511, 512, 530, 1040}, at::kInt);
  for (const Types types : kTypes) {
    for (const int64_t group : {1, 2, 3, 4, 7}) {
      for (const int64_t dim : {64, 80, 20, 128}) {
        const AttentionShape shape{2 * group, 2, dim, dim == 64 ? 32 : 16};
        const Sequence s(shape, types, 1041, static_cast<uint32_t>(group));
        const at::Tensor want =
            AttentionOracle(Split(s.qkv, shape, 0).index_select(0, rows), Split(s.qkv, shape, 1),
                            Split(s.qkv, shape, 2), rows, 0.25)
                .view({rows.numel(), -1});
        for (const std::string& target : targets) {
          const SimdTargetScope scope(target);
          const std::string what = target + " group " + std::to_string(group) + " dim " +
                                   std::to_string(dim);
          const double abs = 1e-5 + WeightRounding(types.cache, Split(s.qkv, shape, 2));
          ExpectClose(s.Attend(rows, Layout::kOffsetByOne), want, abs, HalfUlp(types.act) + 1e-5, what);
        }
      }
    }
  }
}

// float32 activations over a bfloat16 cache: keys and values are rounded once, on their way in.
TEST(PagedAttention, Float32ActivationsOverBfloat16Cache) {
  at::manual_seed(7);
  const AttentionShape shape{6, 2, 80, 32};
  const at::Tensor positions = at::arange(70, at::kInt), table = RotaryTable(70, 80);
  const QkvNorms norms{Rms(480, 0), Rms(160, 0), Rms(160, 0)};
  const at::Tensor in = at::randn({70, 10 * 80});
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    Cache exact(shape, at::kFloat, 1, 70, 1), rounded(shape, at::kBFloat16, 1, 70, 1);
    at::Tensor a = in.clone(), b = in.clone();
    const at::Tensor slots = exact.Slots(0, positions);
    const auto pairs = RotaryPairs::kHalfSplit;
    QkvNormRotaryWrite(a, norms, table, pairs, positions, slots, shape, exact.k, exact.v);
    QkvNormRotaryWrite(b, norms, table, pairs, positions, slots, shape, rounded.k, rounded.v);
    EXPECT_TRUE(SameBits(a, b)) << target;
    const auto [k, v] = ReadBack(rounded, slots);
    EXPECT_TRUE(SameBits(k, ReadBack(exact, slots).first.to(at::kBFloat16))) << target;
    EXPECT_TRUE(SameBits(v, ReadBack(exact, slots).second.to(at::kBFloat16))) << target;
    at::Tensor out = at::empty({70, 480});
    PagedAttention(b, rounded.k, rounded.v, rounded.tables, at::zeros({70}, at::kInt), positions,
                   {}, {}, 0.25f, shape, out);
    const at::ScalarType of_queries = Dots(at::kBFloat16) ? at::kBFloat16 : at::kFloat;
    const at::Tensor want = AttentionOracle(Split(b, shape, 0).to(of_queries), k, v, positions, 0.25);
    ExpectClose(out, want.view({70, -1}), 1e-5 + WeightRounding(at::kBFloat16, v), 1e-5, target);
  }
}

TEST(PagedAttention, BlockSizeAndBlockOrderChangeNoBit) {
  const at::Tensor rows = at::tensor({0, 40, 699}, at::kInt);
  for (const Types types : kTypes) {
    at::Tensor first;
    for (const int64_t block : {16, 32, 64, 48}) {
      for (const uint32_t seed : {1u, 2u}) {
        at::manual_seed(4);
        const Sequence s({6, 2, 64, block}, types, 700, seed);
        const at::Tensor out = s.Attend(rows);
        if (!first.defined()) first = out;
        EXPECT_TRUE(SameBits(out, first)) << block;
      }
    }
  }
}

TEST(PagedAttention, SameBitsForAnyBatchAndThreadCount) {
  at::manual_seed(5);
  for (const Types types : kTypes) {
    const Sequence s({8, 2, 64, 32}, types, 600, 7);
    const at::Tensor all = at::arange(600, at::kInt);
    const at::Tensor want = s.Attend(all);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const ScopedPool scope(&pool);
      EXPECT_TRUE(SameBits(s.Attend(all), want)) << threads;
      for (const int64_t row : {0, 31, 599}) {
        EXPECT_TRUE(SameBits(s.Attend(all.slice(0, row, row + 1)), want.slice(0, row, row + 1)));
      }
    }
  }
}

// Whatever unused slots hold (here NaN from the start, then Inf) never reaches a result, the neighbours of pairs among
// them; what a token may see does: a NaN key makes that row, and no earlier one, NaN.
TEST(PagedAttention, UnusedSlotsNeverReachTheResult) {
  at::manual_seed(6);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const Types types : kTypes) {
      const Sequence s({4, 2, 64, 32}, types, 37, 3);
      const at::Tensor rows = at::arange(37, at::kInt);
      const at::Tensor clean = s.Attend(rows);
      EXPECT_TRUE(clean.isfinite().all().item<bool>());
      at::Tensor k = s.cache.k, v = s.cache.v;
      k.masked_fill_(k.isnan(), INFINITY);
      v.masked_fill_(v.isnan(), INFINITY);
      EXPECT_TRUE(SameBits(s.Attend(rows), clean)) << target;
      const int64_t slot = s.cache.Slots(0, at::tensor({20}, at::kInt))[0].item<int32_t>();
      if (Paired(types.cache)) {
        k.view({-1, 2, 32, 32, 2})[slot / 32][0][2][slot % 32][1] = NAN;
      } else {
        k[slot / 32][0][5][slot % 32] = NAN;
      }
      const at::Tensor poisoned = s.Attend(rows);
      EXPECT_TRUE(SameBits(poisoned.slice(0, 0, 20), clean.slice(0, 0, 20))) << target;
      EXPECT_TRUE(poisoned.slice(0, 20).slice(1, 0, 128).isnan().all().item<bool>()) << target;
      EXPECT_TRUE(SameBits(poisoned.slice(1, 128).contiguous(), clean.slice(1, 128).contiguous()));
    }
  }
}

TEST(PagedAttention, RefusesPositionsOutsideTheTable) {
  const Sequence s({2, 2, 16, 16}, kTypes[0], 16, 1);
  at::Tensor out = at::empty({1, 32});
  const at::Tensor zero = at::zeros({1}, at::kInt), far = at::full({1}, 16, at::kInt);
  const at::Tensor q = s.qkv.slice(0, 0, 1);
  EXPECT_THROW(PagedAttention(q, s.cache.k, s.cache.v, s.cache.tables, zero, far, {}, {}, 1.0f, s.shape, out),
               c10::Error);
  EXPECT_THROW(PagedAttention(q, s.cache.k, s.cache.v, s.cache.tables, far, zero, {}, {}, 1.0f, s.shape, out),
               c10::Error);
}

}  // namespace
}  // namespace normserve::kernels
