// SPDX-License-Identifier: Apache-2.0
// The int8 cache of the CPU: what QkvNormRotaryWrite puts there against a scalar reading of qkv_rows.h, and what
// PagedAttention makes of it against the double oracle.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/guarded.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

enum class Part { kKeys, kValues };

// The bytes of one position of one kv head, by the documented layout.
struct Place {
  int8_t* head;  // its scales, then its pairs
  const AttentionShape& shape;
  int64_t at;
  Part part;

  Place(at::Tensor& cache, const AttentionShape& s, Part which, int64_t slot, int64_t kv_head)
      : head(cache.data_ptr<int8_t>() +
             (slot / s.block_size * s.kv_heads + kv_head) * s.block_size * (s.head_dim + 4)),
        shape(s), at(slot % s.block_size), part(which) {}
  int8_t& Byte(int64_t i) const {
    int8_t* pairs = head + 4 * shape.block_size;
    return part == Part::kKeys ? pairs[(i / 2 * shape.block_size + at) * 2 + i % 2]
                               : pairs[(at / 2 * shape.head_dim + i) * 2 + at % 2];
  }
  float Scale() const {
    float scale;
    std::memcpy(&scale, head + 4 * at, 4);
    return scale;
  }
  void SetScale(float scale) const { std::memcpy(head + 4 * at, &scale, 4); }
};

// Writes x [kv_heads, head_dim] as the format has it, one number at a time.
void Write(at::Tensor& cache, const AttentionShape& s, Part part, int64_t slot, const at::Tensor& x) {
  for (int64_t h = 0; h < s.kv_heads; ++h) {
    const float* from = x.const_data_ptr<float>() + h * s.head_dim;
    const Place place(cache, s, part, slot, h);
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < s.head_dim; ++i) {
      finite = finite && std::isfinite(from[i]);
      most = std::max(most, std::fabs(from[i]));
    }
    const bool zeros = !finite || most < 1e-30f;
    place.SetScale(!finite ? NAN : zeros ? 0.0f : most / 127.0f);
    for (int64_t i = 0; i < s.head_dim; ++i) {
      place.Byte(i) = zeros ? int8_t{0} : static_cast<int8_t>(std::nearbyint(from[i] * (127.0f / most)));
    }
  }
}

// Keys or values of `slots` as the cache means them, [slots, kv_heads, head_dim] in double.
at::Tensor ReadBytes(at::Tensor& cache, const AttentionShape& s, Part part, const at::Tensor& slots) {
  at::Tensor out = at::empty({slots.numel(), s.kv_heads, s.head_dim}, at::kDouble);
  double* to = out.data_ptr<double>();
  for (int64_t t = 0; t < slots.numel(); ++t) {
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      const Place place(cache, s, part, slots[t].item<int32_t>(), h);
      for (int64_t i = 0; i < s.head_dim; ++i) *to++ = static_cast<double>(place.Scale()) * place.Byte(i);
    }
  }
  return out;
}

void CheckWrite(const AttentionShape& s, RotaryPairs pairs, bool normed) {
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 4, 17, 30, 31, 32}, at::kInt);
  Cache bytes(s, at::kChar, 1, 40, 5), floats(s, at::kFloat, 1, 40, 5);
  at::Tensor slots = bytes.Slots(0, positions);
  slots[4] = -1;
  QkvNorms norms;
  if (normed) norms = {Rms(s.heads * s.head_dim, 0), Rms(s.kv_heads * s.head_dim, 0), {}};
  at::Tensor a = at::randn({9, (s.heads + 2 * s.kv_heads) * s.head_dim});
  at::Tensor values = a.slice(1, (s.heads + s.kv_heads) * s.head_dim);
  values[1].zero_();
  values[2].fill_(1e-31);
  values[3][1] = NAN;
  values[5][0] = -INFINITY;
  values[6].mul_(1e-28);
  values[7].mul_(1e30);
  at::Tensor b = a.clone();
  QkvNormRotaryWrite(a, norms, RotaryTable(64, s.head_dim), pairs, positions, slots, s, bytes.k, bytes.v);
  QkvNormRotaryWrite(b, norms, RotaryTable(64, s.head_dim), pairs, positions, slots, s, floats.k, floats.v);
  const std::string what = SimdTargetName() + " dim " + std::to_string(s.head_dim);
  EXPECT_TRUE(SameBits(a.nan_to_num(7, 8, 9), b.nan_to_num(7, 8, 9))) << what;
  // All bytes, those of other slots among them.
  Cache want(s, at::kChar, 1, 40, 5);
  for (int64_t t = 0; t < 9; ++t) {
    if (t == 4) continue;
    const auto [k, v] = ReadBack(floats, slots.slice(0, t, t + 1));
    Write(want.k, s, Part::kKeys, slots[t].item<int32_t>(), k[0].contiguous());
    Write(want.v, s, Part::kValues, slots[t].item<int32_t>(), v[0].contiguous());
  }
  EXPECT_TRUE(at::equal(bytes.k, want.k)) << what;
  EXPECT_TRUE(at::equal(bytes.v, want.v)) << what;
}

TEST(Int8Cache, HoldsWhatTheFormatSays) {
  at::manual_seed(1);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const int64_t dim : {16, 64, 80, 100, 6}) {
      for (const auto pairs : {RotaryPairs::kNone, RotaryPairs::kHalfSplit, RotaryPairs::kInterleaved}) {
        CheckWrite({6, 2, dim, 16}, pairs, false);
        CheckWrite({6, 3, dim, 48}, pairs, true);
      }
    }
  }
}

// One sequence of `context` tokens in a fresh cache, attended from rows of it.
struct Sequence {
  AttentionShape shape;
  Cache cache;
  at::Tensor qkv, positions;

  Sequence(const AttentionShape& s, const at::Tensor& in, uint32_t seed)
      : shape(s), cache(s, at::kChar, 1, in.size(0), seed), qkv(in.clone()),
        positions(at::arange(in.size(0), at::kInt)) {
    QkvNormRotaryWrite(qkv, {}, {}, RotaryPairs::kNone, positions, cache.Slots(0, positions), s, cache.k, cache.v);
  }
  Sequence(const AttentionShape& s, int64_t context, uint32_t seed)
      : Sequence(s, at::randn({context, (s.heads + 2 * s.kv_heads) * s.head_dim}), seed) {}

  at::Tensor Attend(const at::Tensor& rows) const {
    Guarded out(rows.numel(), shape.heads * shape.head_dim, at::kFloat, Layout::kOffsetByOne);
    PagedAttention(qkv.index_select(0, rows), cache.k, cache.v, cache.tables, at::zeros_like(rows),
                   positions.index_select(0, rows), {}, {}, 0.25f, shape, out.view());
    out.ExpectBandIntact("out");
    return out.view().contiguous();
  }
  at::Tensor Read(Part part) {
    return ReadBytes(part == Part::kKeys ? cache.k : cache.v, shape, part, cache.Slots(0, positions));
  }
};

// What a score has of a query: it in steps of its head's largest / 32767.
at::Tensor RoundedQueries(const at::Tensor& q) {
  const at::Tensor step = q.to(at::kDouble).abs().amax(-1, true) / 32767.0;
  return (q.to(at::kDouble) / step).round() * step;
}

TEST(Int8Cache, AttentionAgreesWithTheOracle) {
  at::manual_seed(2);
  const at::Tensor rows = at::tensor({0, 1, 15, 16, 17, 63, 64, 511, 512, 530, 1040}, at::kInt);
  const std::vector<std::string> targets = SimdTargets();
  for (const int64_t group : {1, 2, 3, 4, 7}) {
    for (const int64_t dim : {64, 80, 20, 6, 128}) {
      const AttentionShape shape{2 * group, 2, dim, dim == 64 ? 32 : 16};
      Sequence s(shape, 1041, static_cast<uint32_t>(group));
      const at::Tensor q = RoundedQueries(Split(s.qkv, shape, 0).index_select(0, rows));
      const at::Tensor want =
          AttentionOracle(q, s.Read(Part::kKeys), s.Read(Part::kValues), rows, 0.25).view({rows.numel(), -1});
      at::Tensor dots;
      for (const std::string& target : targets) {
        const SimdTargetScope scope(target);
        const at::Tensor got = s.Attend(rows);
        // A piece's 512 weights are off by up to half a step of 1/32767 of the largest, which moves a mean of values
        // of about 1 by some 1e-4 (where one weight outdoes all others); a position left out or taken twice by more.
        ExpectClose(got, want, 6e-4, 1e-5,
                    target + " group " + std::to_string(group) + " dim " + std::to_string(dim));
        // The integers are the same ones, however multiplied.
        if (target == "AVX3_DOT") dots = got;
        if (target == "AVX3" && dots.defined()) {
          EXPECT_TRUE(SameBits(got, dots));
        }
      }
    }
  }
}

// A later piece whose weights are far below the first one's keeps its own steps.
TEST(Int8Cache, EachPieceIsRoundedByItsOwnLargestWeight) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor in = at::zeros({1024, 3 * 32});
    in.slice(1, 0, 32).fill_(1.0f);
    in[0].slice(0, 32, 64).fill_(1.5f);  // a score of 12, others have 0
    in.slice(0, 512).slice(1, 64).fill_(1.0f);
    const float got = Sequence({1, 1, 32, 16}, in, 1).Attend(at::tensor({1023}, at::kInt)).max().item<float>();
    const double weight = std::exp(-12.0);
    EXPECT_NEAR(got / (512 * weight / (1 + 1023 * weight)), 1.0, 1e-4) << target;
  }
}

// Sums of products reach 32767 * 127 * 512, just below 2^31.
TEST(Int8Cache, TheLargestSumsFit) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const int64_t dim : {512, 514, 1024}) {
      const AttentionShape shape{1, 1, dim, 16};
      at::Tensor in = at::ones({512, 3 * dim});
      in.slice(1, dim, 2 * dim).fill_(0.125f);
      in.slice(1, 0, dim).fill_(-1.0f);
      Sequence s(shape, in, 1);
      const at::Tensor last = at::tensor({511}, at::kInt);
      EXPECT_LT((s.Attend(last) - 1.0f).abs().max().item<float>(), 1e-5) << target << " " << dim;
      // Their signs count: one key that looks the other way takes all the weight.
      in.slice(1, dim, 2 * dim)[300].neg_();
      in.slice(1, 2 * dim)[300].fill_(5.0f);
      Sequence other(shape, in, 1);
      EXPECT_LT((other.Attend(last) - 5.0f).abs().max().item<float>(), 1e-4) << target << " " << dim;
    }
  }
}

TEST(Int8Cache, BlockSizeAndBlockOrderChangeNoBit) {
  at::manual_seed(4);
  const at::Tensor in = at::randn({700, 10 * 64});
  const at::Tensor rows = at::tensor({0, 40, 698, 699}, at::kInt);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor first;
    for (const int64_t block : {16, 32, 64, 48}) {
      for (const uint32_t seed : {1u, 2u}) {
        const at::Tensor out = Sequence({6, 2, 64, block}, in, seed).Attend(rows);
        if (!first.defined()) first = out;
        EXPECT_TRUE(SameBits(out, first)) << target << " " << block;
      }
    }
  }
}

TEST(Int8Cache, SameBitsForAnyBatchAndThreadCount) {
  at::manual_seed(5);
  const Sequence s({8, 2, 64, 32}, 600, 7);
  const at::Tensor all = at::arange(600, at::kInt);
  const at::Tensor want = s.Attend(all);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const ScopedPool scope(&pool);
    EXPECT_TRUE(SameBits(Sequence(s.shape, s.qkv, 7).Attend(all), want)) << threads;  // written in parallel, too
    for (const int64_t row : {0, 31, 511, 512, 599}) {
      EXPECT_TRUE(SameBits(s.Attend(all.slice(0, row, row + 1)), want.slice(0, row, row + 1)));
    }
    for (const int64_t chunk : {1, 37, 512}) {  // written so many tokens at a time, and attended as soon as they are
      Cache cache(s.shape, at::kChar, 1, 600, 3);
      for (int64_t begin = 0; begin < 600; begin += chunk) {
        const int64_t end = std::min<int64_t>(600, begin + chunk);
        at::Tensor in = s.qkv.slice(0, begin, end), out = at::empty({end - begin, 512});
        const at::Tensor at_positions = all.slice(0, begin, end);
        QkvNormRotaryWrite(in, {}, {}, RotaryPairs::kNone, at_positions, cache.Slots(0, at_positions), s.shape,
                           cache.k, cache.v);
        PagedAttention(in, cache.k, cache.v, cache.tables, at::zeros_like(at_positions), at_positions, {}, {}, 0.25f,
                       s.shape, out);
        ASSERT_TRUE(SameBits(out, want.slice(0, begin, end))) << chunk << " at " << begin;
      }
    }
  }
}

// Whatever unused slots and blocks hold never reaches a result, NaN and huge scales among it, the neighbours of pairs
// included; what a token may see does: a NaN scale makes the rows of its kv head from there on NaN, and no others.
TEST(Int8Cache, UnusedSlotsNeverReachTheResult) {
  at::manual_seed(6);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const int64_t dim : {64, 20}) {
      Sequence s({4, 2, dim, 32}, 37, 3);
      const at::Tensor rows = at::arange(37, at::kInt), slots = s.cache.Slots(0, s.positions);
      const at::Tensor clean = s.Attend(rows);
      EXPECT_TRUE(clean.isfinite().all().item<bool>()) << target;
      // The bytes in use survive a change of all: they are written again.
      for (const int filling : {0x7F, 0x00, -128, 1}) {
        s.cache.k = filling == 1 ? at::randint(-128, 128, s.cache.k.sizes(), at::kChar)
                                 : at::full(s.cache.k.sizes(), filling, at::kChar);
        s.cache.v = s.cache.k.clone();
        QkvNormRotaryWrite(s.qkv, {}, {}, RotaryPairs::kNone, s.positions, slots, s.shape, s.cache.k, s.cache.v);
        EXPECT_TRUE(SameBits(s.Attend(rows), clean)) << target << " " << filling;
      }
      for (const Part part : {Part::kKeys, Part::kValues}) {
        at::Tensor& cache = part == Part::kKeys ? s.cache.k : s.cache.v;
        const at::Tensor before = cache.clone();
        Place(cache, s.shape, part, slots[20].item<int32_t>(), 0).SetScale(NAN);
        const at::Tensor poisoned = s.Attend(rows);
        EXPECT_TRUE(SameBits(poisoned.slice(0, 0, 20), clean.slice(0, 0, 20))) << target;
        EXPECT_TRUE(poisoned.slice(0, 20).slice(1, 0, 2 * dim).isnan().all().item<bool>()) << target;
        EXPECT_TRUE(SameBits(poisoned.slice(1, 2 * dim).contiguous(), clean.slice(1, 2 * dim).contiguous()));
        cache.copy_(before);
      }
    }
  }
}

// From the activations on: a NaN or Inf in a query, a key or a value shows up where it is attended to.
TEST(Int8Cache, WhatIsNoNumberShowsUp) {
  at::manual_seed(7);
  const at::Tensor rows = at::arange(37, at::kInt);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const int64_t column : {3, 64 + 5, 128 + 7}) {
        at::Tensor in = at::randn({37, 192});
        const at::Tensor clean = Sequence({1, 1, 64, 16}, in, 1).Attend(rows);
        in[20][column] = bad;
        const at::Tensor got = Sequence({1, 1, 64, 16}, in, 1).Attend(rows);
        EXPECT_TRUE(SameBits(got.slice(0, 0, 20), clean.slice(0, 0, 20))) << target;
        const at::Tensor hit = got.slice(0, 20, column < 64 ? 21 : 37);
        EXPECT_TRUE(hit.isnan().all().item<bool>()) << target << " " << column;
        if (column < 64) {
          EXPECT_TRUE(SameBits(got.slice(0, 21), clean.slice(0, 21))) << target;
        }
      }
    }
  }
}

// Zeros are zeros, and tiny numbers keep their ratios.
TEST(Int8Cache, ZerosAndTinyNumbers) {
  at::manual_seed(8);
  const at::Tensor row = at::tensor({599}, at::kInt);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor in = at::randn({600, 192});
    in.slice(1, 128).zero_();
    EXPECT_TRUE(SameBits(Sequence({1, 1, 64, 16}, in, 1).Attend(row), at::zeros({1, 64}))) << target;
    in.slice(1, 0, 128).zero_();
    in.slice(1, 128).fill_(3e-29f);
    const at::Tensor tiny = Sequence({1, 1, 64, 16}, in, 1).Attend(row);
    EXPECT_LT((tiny / 3e-29f - 1.0f).abs().max().item<float>(), 1e-4) << target;
  }
}

TEST(Int8Cache, RefusesWhatItCannotHold) {
  const auto attempt = [](int64_t dim, at::ScalarType act, int64_t bytes) {
    const AttentionShape shape{2, 2, dim, 16};
    at::Tensor k = at::zeros({3, 2, bytes}, at::kChar), v = k.clone();
    at::Tensor qkv = at::zeros({1, 6 * dim}, act), out = at::zeros({1, 2 * dim}, act);
    const at::Tensor zero = at::zeros({1}, at::kInt), table = at::zeros({1, 1}, at::kInt);
    QkvNormRotaryWrite(qkv, {}, {}, RotaryPairs::kNone, zero, zero, shape, k, v);
    PagedAttention(qkv, k, v, table, zero, zero, {}, {}, 1.0f, shape, out);
  };
  EXPECT_NO_THROW(attempt(8, at::kFloat, 16 * 12));
  EXPECT_THROW(attempt(7, at::kFloat, 16 * 11), c10::Error);
  EXPECT_THROW(attempt(8, at::kBFloat16, 16 * 12), c10::Error);
  EXPECT_THROW(attempt(8, at::kFloat, 16 * 8), c10::Error);
}

}  // namespace
}  // namespace normserve::kernels
