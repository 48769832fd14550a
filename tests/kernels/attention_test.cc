// SPDX-License-Identifier: Apache-2.0
// QkvNormRotaryWrite and PagedAttention against the double oracle and the authors' rotary vectors.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/golden_tensors.h"
#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

// Of the activations and of the cache.
struct Types {
  at::ScalarType act, cache;
};
constexpr Types kTypes[] = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}};

double HalfUlp(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 0x1p-8 * 1.02; }

// Whether attention multiplies pairs of bfloat16 on the target in use: queries and the scores' weights are rounded.
bool Dots(at::ScalarType cache) { return cache == at::kBFloat16 && !AnotherDevice() && HasBFloat16Dot(); }

// How far rounded weights can move a mean of values.
double WeightRounding(at::ScalarType cache, const at::Tensor& values) {
  return Dots(cache) ? 0x1p-9 * values.abs().max().item<double>() : 0.0;
}

// A cache whose every slot is NaN until written, and block tables that jump about.
struct Cache {
  AttentionShape shape;
  at::Tensor k, v, tables;  // tables [sequences, max_blocks]

  Cache(const AttentionShape& s, at::ScalarType dtype, int64_t sequences, int64_t tokens,
        uint32_t seed)
      : shape(s) {
    const int64_t per = (tokens + s.block_size - 1) / s.block_size, blocks = sequences * per + 3;
    k = at::full({blocks, s.kv_heads, s.head_dim, s.block_size}, NAN, dtype);
    v = at::full({blocks, s.kv_heads, s.block_size, s.head_dim}, NAN, dtype);
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    order.resize(static_cast<size_t>(sequences * per));
    tables = at::tensor(order, at::kInt).view({sequences, per});
  }

  at::Tensor Slots(int64_t sequence, const at::Tensor& positions) const {
    at::Tensor slots = at::empty_like(positions);
    for (int64_t t = 0; t < positions.numel(); ++t) {
      const int32_t p = positions[t].item<int32_t>();
      const int32_t size = static_cast<int32_t>(shape.block_size);
      slots[t] = tables[sequence][p / size].item<int32_t>() * size + p % size;
    }
    return slots;
  }
};

at::Tensor Split(const at::Tensor& qkv, const AttentionShape& s, int part) {
  const int64_t begin[] = {0, s.heads, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads};
  return qkv.slice(1, begin[part] * s.head_dim, begin[part + 1] * s.head_dim)
      .reshape({qkv.size(0), -1, s.head_dim});
}

// Keys and values of `positions` read back from the cache, [tokens, kv_heads, dim].
std::pair<at::Tensor, at::Tensor> ReadBack(const Cache& c, const at::Tensor& slots) {
  const bool paired = c.k.scalar_type() == at::kBFloat16 && !AnotherDevice();
  std::vector<at::Tensor> k, v;
  for (int64_t t = 0; t < slots.numel(); ++t) {
    const int64_t slot = slots[t].item<int32_t>(), size = c.shape.block_size;
    const int64_t block = slot / size, at = slot % size, heads = c.shape.kv_heads, dim = c.shape.head_dim;
    if (paired) {
      k.push_back(c.k[block].view({heads, dim / 2, size, 2}).select(2, at).reshape({heads, dim}));
      v.push_back(c.v[block].view({heads, size / 2, dim, 2}).select(1, at / 2).select(2, at % 2));
    } else {
      k.push_back(c.k[block].select(2, at));
      v.push_back(c.v[block].select(1, at));
    }
  }
  return {at::stack(k), at::stack(v)};
}

at::Tensor RotaryTable(int64_t positions, int64_t dim) {
  const at::Tensor angle = at::arange(positions).to(at::kFloat).view({-1, 1}) *
                           at::pow(10000.0, at::arange(dim / 2) * (-2.0 / dim));
  return at::cat({angle.cos(), angle.sin()}, 1).contiguous();
}

Norm Rms(int64_t width, int32_t group) {
  Norm norm;
  norm.numbers.stat = NormStat::kMeanSquare;
  norm.numbers.eps = 1e-5f;
  norm.numbers.group_width = group;
  norm.gamma = at::randn({width}) * 0.3 + 1.0;
  return norm;
}

void CheckQkv(const AttentionShape& s, Types types, RotaryPairs pairs, int norm_kind) {
  const int64_t tokens = 9;
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 4, 17, 30, 31, 32}, at::kInt);
  const at::Tensor table = RotaryTable(64, s.head_dim);
  Cache cache(s, types.cache, 1, 40, 5);
  at::Tensor slots = cache.Slots(0, positions);
  slots[4] = -1;
  QkvNorms norms;
  if (norm_kind != 0) {
    const int32_t group = norm_kind == 1 ? 0 : static_cast<int32_t>(s.head_dim);
    norms.q = Rms(s.heads * s.head_dim, group);
    norms.k = Rms(s.kv_heads * s.head_dim, group);
    if (norm_kind == 1) norms.v = Rms(s.kv_heads * s.head_dim, group);
  }
  const at::Tensor in = at::randn({tokens, (s.heads + 2 * s.kv_heads) * s.head_dim}).to(types.act);
  Guarded qkv(in, Layout::kOffsetByOne);
  QkvNormRotaryWrite(qkv.view(), norms, table, pairs, positions, slots, s, cache.k, cache.v);
  qkv.ExpectBandIntact("qkv");
  const int64_t q_width = s.heads * s.head_dim;
  EXPECT_TRUE(SameBits(qkv.view().slice(1, q_width), in.slice(1, q_width)));

  const at::Tensor rows = table.index_select(0, positions);
  const OptionalNorm* sites[] = {&norms.q, &norms.k, &norms.v};
  at::Tensor want[3];
  for (int part = 0; part < 3; ++part) {
    at::Tensor x = Split(in, s, part);
    if (*sites[part]) {
      x = NormOracle(x.reshape({tokens, -1}), **sites[part], {}).y.view_as(x);
    }
    want[part] = RotaryOracle(x, rows, part == 2 ? RotaryPairs::kNone : pairs);
  }
  const std::string what = std::string(SimdTargetName()) + " dim " + std::to_string(s.head_dim);
  ExpectClose(Split(qkv.view(), s, 0), want[0], 4e-6, HalfUlp(types.act), "q " + what);
  const at::Tensor kept = at::tensor({0, 1, 2, 3, 5, 6, 7, 8}, at::kInt);
  const auto [k, v] = ReadBack(cache, slots.index_select(0, kept));
  ExpectClose(k, want[1].index_select(0, kept), 4e-6, HalfUlp(types.cache), "k " + what);
  ExpectClose(v, want[2].index_select(0, kept), 4e-6, HalfUlp(types.cache), "v " + what);
  // Everything else in the cache is as it was.
  EXPECT_EQ(cache.k.isnan().logical_not().sum().item<int64_t>(), k.numel()) << what;
  EXPECT_EQ(cache.v.isnan().logical_not().sum().item<int64_t>(), v.numel()) << what;
}

TEST(QkvNormRotaryWrite, ImplementationsAgree) {
  at::manual_seed(1);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const Types types : kTypes) {
      for (const int64_t dim : {16, 64, 80, 100, 6}) {
        for (const int norm : {0, 1, 2}) {
          for (const auto pairs :
               {RotaryPairs::kNone, RotaryPairs::kHalfSplit, RotaryPairs::kInterleaved}) {
            CheckQkv({6, 2, dim, 16}, types, pairs, norm);
          }
        }
      }
    }
  }
}

// Fused equals NormOp on the slices, then rotary: in float32 nothing is rounded in between.
TEST(QkvNormRotaryWrite, FusedEqualsUnfused) {
  at::manual_seed(2);
  const AttentionShape s{4, 2, 64, 32};
  const at::Tensor positions = at::arange(7, at::kInt), table = RotaryTable(8, 64);
  const QkvNorms norms{Rms(256, 0), Rms(128, 64), Rms(128, 0)};
  const at::Tensor in = at::randn({7, 8 * 64});
  for (const auto pairs : {RotaryPairs::kHalfSplit, RotaryPairs::kInterleaved}) {
    Cache fused(s, at::kFloat, 1, 32, 1), parts(s, at::kFloat, 1, 32, 1);
    const at::Tensor slots = fused.Slots(0, positions);
    at::Tensor a = in.clone(), b = in.clone(), none;
    QkvNormRotaryWrite(a, norms, table, pairs, positions, slots, s, fused.k, fused.v);
    at::Tensor q = b.slice(1, 0, 256), k = b.slice(1, 256, 384), v = b.slice(1, 384);
    NormOp(q, *norms.q, none, q);
    NormOp(k, *norms.k, none, k);
    NormOp(v, *norms.v, none, v);
    QkvNormRotaryWrite(b, {}, table, pairs, positions, slots, s, parts.k, parts.v);
    EXPECT_TRUE(SameBits(a.slice(1, 0, 256), b.slice(1, 0, 256)));
    EXPECT_TRUE(SameBits(fused.k, parts.k));
    EXPECT_TRUE(SameBits(fused.v, parts.v));
  }
}

TEST(QkvNormRotaryWrite, SameBitsForAnyThreadAndTokenCount) {
  const AttentionShape s{8, 2, 64, 32};
  const at::Tensor in = at::randn({50, 12 * 64}).to(at::kBFloat16), table = RotaryTable(64, 64);
  const at::Tensor positions = at::arange(50, at::kInt);
  const QkvNorms norms{Rms(512, 0), Rms(128, 0), Rms(128, 0)};
  Cache alone(s, at::kBFloat16, 1, 64, 1);
  const at::Tensor slots = alone.Slots(0, positions);
  at::Tensor want = in.clone();
  for (int64_t t = 0; t < 50; ++t) {
    at::Tensor one = want.slice(0, t, t + 1);
    QkvNormRotaryWrite(one, norms, table, RotaryPairs::kHalfSplit, positions.slice(0, t, t + 1),
                       slots.slice(0, t, t + 1), s, alone.k, alone.v);
  }
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const ScopedPool scope(&pool);
    Cache cache(s, at::kBFloat16, 1, 64, 1);
    at::Tensor x = in.clone();
    QkvNormRotaryWrite(x, norms, table, RotaryPairs::kHalfSplit, positions, slots, s, cache.k,
                       cache.v);
    EXPECT_TRUE(SameBits(x, want));
    EXPECT_TRUE(SameBits(cache.k, alone.k));
    EXPECT_TRUE(SameBits(cache.v, alone.v));
  }
}

// The authors' rotary vectors: half split (the BHyT code, all scalings) and interleaved (SimpleGPT).
TEST(QkvNormRotaryWrite, RotaryGolden) {
  const auto t = ReadGoldenTensors("golden/norm_ops.safetensors");
  const at::Tensor q = t.at("rope.q")[0], k = t.at("rope.k")[0];  // [6, heads, 16]
  const AttentionShape s{4, 2, 16, 16};
  const auto json = ReadGoldenJson("golden/norm_ops.json");
  const at::Tensor positions_file = [] {
    std::ifstream file("golden/norm_ops.safetensors", std::ios::binary);
    uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), 8);
    std::string header(size, '\0');
    file.read(header.data(), static_cast<std::streamsize>(size));
    const auto at_offset = nlohmann::json::parse(header)["rope.positions"]["data_offsets"][0];
    file.seekg(static_cast<std::streamoff>(8 + size + at_offset.get<uint64_t>()));
    at::Tensor p = at::empty({6}, at::kLong);
    file.read(static_cast<char*>(p.data_ptr()), 48);
    return p;
  }();
  int checked = 0;
  for (const auto& [name, entry] : json.at("ops").items()) {
    const bool hf = name.rfind("rope.hf.", 0) == 0, sg = name.rfind("rope.sg.", 0) == 0;
    if ((!hf && !sg) || name.substr(name.size() - 2) != ".q") continue;
    const std::string base = name.substr(0, name.size() - 2);
    at::Tensor table;  // one row per token
    if (hf) {
      const at::Tensor angle =
          positions_file.to(at::kFloat).view({6, 1}) * t.at(base + ".inv_freq").view({1, -1});
      table = at::cat({angle.cos(), angle.sin()}, 1);
    } else {
      table = at::cat({t.at(base + ".freqs_cis_real_first6"), t.at(base + ".freqs_cis_imag_first6")},
                      1);
    }
    for (const std::string& target : SimdTargets()) {
      const SimdTargetScope scope(target);
      Cache cache(s, at::kFloat, 1, 16, 1);
      const at::Tensor rows = at::arange(6, at::kInt), slots = cache.Slots(0, rows);
      at::Tensor qkv = at::cat({q.reshape({6, 64}), k.reshape({6, 32}), at::zeros({6, 32})}, 1);
      QkvNormRotaryWrite(qkv, {}, table.contiguous(),
                         hf ? RotaryPairs::kHalfSplit : RotaryPairs::kInterleaved, rows, slots, s,
                         cache.k, cache.v);
      ExpectClose(qkv.slice(1, 0, 64), t.at(base + ".q").view({6, 64}), 1e-6, 1e-6, name);
      ExpectClose(ReadBack(cache, slots).first, t.at(base + ".k")[0], 1e-6, 1e-6, name);
      ++checked;
    }
  }
  EXPECT_GE(checked, 6);
}

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
  at::Tensor first;
  for (const int64_t block : {16, 32, 64, 48}) {
    for (const uint32_t seed : {1u, 2u}) {
      at::manual_seed(4);
      const Sequence s({6, 2, 64, block}, kTypes[1], 700, seed);
      const at::Tensor out = s.Attend(rows);
      if (!first.defined()) first = out;
      EXPECT_TRUE(SameBits(out, first)) << block;
    }
  }
}

TEST(PagedAttention, SameBitsForAnyBatchAndThreadCount) {
  at::manual_seed(5);
  const Sequence s({8, 2, 64, 32}, kTypes[1], 600, 7);
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

// Whatever unused slots hold (here NaN from the start, then Inf) never reaches a result; what a token
// may see does: a NaN key makes that row, and no earlier one, NaN.
TEST(PagedAttention, UnusedSlotsNeverReachTheResult) {
  at::manual_seed(6);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    const Sequence s({4, 2, 64, 32}, kTypes[0], 37, 3);
    const at::Tensor rows = at::arange(37, at::kInt);
    const at::Tensor clean = s.Attend(rows);
    EXPECT_TRUE(clean.isfinite().all().item<bool>());
    at::Tensor k = s.cache.k, v = s.cache.v;
    k.masked_fill_(k.isnan(), INFINITY);
    v.masked_fill_(v.isnan(), INFINITY);
    EXPECT_TRUE(SameBits(s.Attend(rows), clean)) << target;
    const int64_t slot = s.cache.Slots(0, at::tensor({20}, at::kInt))[0].item<int32_t>();
    k[slot / 32][0][5][slot % 32] = NAN;
    const at::Tensor poisoned = s.Attend(rows);
    EXPECT_TRUE(SameBits(poisoned.slice(0, 0, 20), clean.slice(0, 0, 20))) << target;
    EXPECT_TRUE(poisoned.slice(0, 20).slice(1, 0, 128).isnan().all().item<bool>()) << target;
    EXPECT_TRUE(SameBits(poisoned.slice(1, 128).contiguous(), clean.slice(1, 128).contiguous()));
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
