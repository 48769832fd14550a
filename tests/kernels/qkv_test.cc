// SPDX-License-Identifier: Apache-2.0
// QkvNormRotaryWrite against the double oracle and the authors' rotary vectors.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/golden_tensors.h"
#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

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

}  // namespace
}  // namespace normserve::kernels
