// SPDX-License-Identifier: Apache-2.0
// Attention by tiles through the operators, FlashInfer's kernel being a loop here: against the kernels' own way on
// the same keys and values, written transposed for the one and by position for the other.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/attention_tiles.h"
#include "kernels/ops.h"

namespace normserve::kernels {
namespace {

constexpr AttentionShape kShape{6, 2, 20, 16};

// Sequences of given contexts, written to one cache of each layout; unused slots are NaN.
struct World {
  at::Tensor tables, transposed, by_position, values, values_too;
  std::vector<at::Tensor> qkv;  // per sequence, after the write

  World(const std::vector<int64_t>& contexts, at::ScalarType dtype, const at::Tensor& cos_sin) {
    const int64_t blocks = 200, longest = *std::max_element(contexts.begin(), contexts.end());
    const int64_t columns = (longest + kShape.block_size - 1) / kShape.block_size + 1;
    const at::Tensor order = at::randperm(blocks).to(at::kInt);
    tables = at::zeros({static_cast<int64_t>(contexts.size()), columns}, at::kInt);
    const auto nans = [&](at::IntArrayRef sizes) { return at::full(sizes, NAN, dtype); };
    transposed = nans({blocks, kShape.kv_heads, kShape.head_dim, kShape.block_size});
    by_position = nans({blocks, kShape.kv_heads, kShape.block_size, kShape.head_dim}).transpose(2, 3);
    values = nans({blocks, kShape.kv_heads, kShape.block_size, kShape.head_dim});
    values_too = values.clone();
    int64_t next = 0;
    for (size_t s = 0; s < contexts.size(); ++s) {
      const int64_t used = (contexts[s] + kShape.block_size - 1) / kShape.block_size;
      tables[static_cast<int64_t>(s)].narrow(0, 0, used).copy_(order.narrow(0, next, used));
      next += used;
      const at::Tensor at = at::arange(contexts[s], at::kInt);
      const at::Tensor slots = (tables[static_cast<int64_t>(s)].index_select(0, at.div(16, "floor").to(at::kInt)) * 16 +
                                at.remainder(16)).to(at::kInt);
      at::Tensor x = at::randn({contexts[s], (kShape.heads + 2 * kShape.kv_heads) * kShape.head_dim}).to(dtype);
      at::Tensor again = x.clone();
      QkvNorms norms;
      norms.k = Norm();
      norms.k->numbers.stat = NormStat::kMeanSquare;
      norms.k->numbers.eps = 1e-5f;
      QkvNormRotaryWrite(x, norms, cos_sin, RotaryPairs::kHalfSplit, at, slots, kShape, transposed, values);
      QkvNormRotaryWrite(again, norms, cos_sin, RotaryPairs::kHalfSplit, at, slots, kShape, by_position, values_too);
      qkv.push_back(x);
    }
  }
};

struct Query {
  int64_t sequence, first, count;
};

at::Tensor Ints(const std::vector<int32_t>& v) {
  at::Tensor t = at::empty({static_cast<int64_t>(v.size())}, at::kInt);
  std::copy(v.begin(), v.end(), t.data_ptr<int32_t>());
  return t;
}

// A step of some tokens of some sequences, each way.
std::pair<at::Tensor, at::Tensor> Attend(const World& world, const std::vector<Query>& queries) {
  std::vector<int32_t> sequence, position;
  std::vector<at::Tensor> rows, tables;
  for (size_t i = 0; i < queries.size(); ++i) {
    const Query& q = queries[i];
    rows.push_back(world.qkv[static_cast<size_t>(q.sequence)].narrow(0, q.first, q.count));
    tables.push_back(world.tables[q.sequence]);
    for (int64_t t = 0; t < q.count; ++t) {
      sequence.push_back(static_cast<int32_t>(i));
      position.push_back(static_cast<int32_t>(q.first + t));
    }
  }
  const at::Tensor qkv = at::cat(rows), table = at::stack(tables);
  const int64_t tokens = qkv.size(0);
  const AttentionTileShape shape{tokens, table.size(0), table.size(1), kShape.block_size,
                                 kShape.heads / kShape.kv_heads};
  at::Tensor tiles = at::empty({AttentionTilesLayout(shape).ints}, at::kInt);
  FillAttentionTiles(shape, tokens, sequence.data(), position.data(), tiles.data_ptr<int32_t>());
  at::Tensor own = at::empty({tokens, kShape.heads * kShape.head_dim}, qkv.options()), tiled = at::empty_like(own);
  const TileParts parts(tokens, shape.splits(), kShape.heads, kShape.head_dim, qkv.element_size());
  const at::Tensor work = at::empty({parts.bytes}, at::kByte);
  PagedAttention(qkv, world.transposed, world.values, table, Ints(sequence), Ints(position), {}, {}, 0.25f, kShape,
                 own);
  PagedAttention(qkv, world.by_position, world.values_too, table, Ints(sequence), Ints(position), tiles, work, 0.25f,
                 kShape, tiled);
  return {own, tiled};
}

at::Tensor Rotary(int64_t positions) {
  const at::Tensor angle = at::arange(positions).view({-1, 1}) * 0.01 * at::arange(1, 11).view({1, -1});
  return at::cat({angle.cos(), angle.sin()}, 1).to(at::kFloat).contiguous();
}

class AttentionTilesOpTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(11); }
};

TEST_P(AttentionTilesOpTest, GiveWhatTheKernelsOwnWayGives) {
  const World world({1, 15, 530, 1040}, GetParam(), Rotary(1040));
  EXPECT_TRUE(at::equal(world.transposed.nan_to_num(7), world.by_position.contiguous().nan_to_num(7)));
  EXPECT_TRUE(at::equal(world.values.nan_to_num(7), world.values_too.nan_to_num(7)));
  const double close = GetParam() == at::kFloat ? 2e-6 : 2e-2;
  const std::vector<std::vector<Query>> steps = {
      {{0, 0, 1}, {1, 14, 1}, {2, 529, 1}, {3, 1039, 1}},  // decode
      {{3, 0, 40}},                                        // the first chunk of a prompt
      {{2, 500, 30}, {0, 0, 1}, {3, 1000, 40}},            // chunks that end a prompt, and a decode
  };
  for (const auto& step : steps) {
    const auto [own, tiled] = Attend(world, step);
    EXPECT_TRUE(at::allclose(tiled, own, close, close)) << (tiled - own).abs().max();
  }
}

TEST_P(AttentionTilesOpTest, ARowsBitsDoNotDependOnItsBatch) {
  const World world({100, 530, 1040}, GetParam(), Rotary(1040));
  const at::Tensor alone = Attend(world, {{1, 529, 1}}).second;
  const at::Tensor beside = Attend(world, {{0, 50, 50}, {1, 529, 1}, {2, 1039, 1}}).second;
  const at::Tensor in_chunk = Attend(world, {{1, 520, 10}}).second;
  EXPECT_TRUE(at::equal(alone[0], beside[50]));
  EXPECT_TRUE(at::equal(alone[0], in_chunk[9]));
}

TEST_P(AttentionTilesOpTest, KeysLieByPositionWhereTilesAreGivenAndOnlyThere) {
  const World world({20}, GetParam(), Rotary(20));
  const at::Tensor zero = at::zeros({1}, at::kInt), q = world.qkv[0].narrow(0, 0, 1);
  const at::Tensor table = at::zeros({1, 40}, at::kInt);  // two splits
  const AttentionTileShape shape{1, 1, 40, kShape.block_size, 3};
  const at::Tensor tiles = at::zeros({AttentionTilesLayout(shape).ints}, at::kInt);
  const TileParts parts(1, 2, kShape.heads, kShape.head_dim, q.element_size());
  const at::Tensor work = at::empty({parts.bytes}, at::kByte);
  at::Tensor out = at::empty({1, 120}, q.options());
  const auto attend = [&](bool by_position, const at::Tensor& ints, const at::Tensor& bytes) {
    PagedAttention(q, by_position ? world.by_position : world.transposed, world.values, table, zero, zero, ints, bytes,
                   1.0f, kShape, out);
  };
  EXPECT_THROW(attend(true, {}, {}), c10::Error);
  EXPECT_THROW(attend(false, tiles, work), c10::Error);
  EXPECT_THROW(attend(true, tiles.narrow(0, 4, 8), work), c10::Error);
  EXPECT_THROW(attend(true, tiles, {}), c10::Error);
  EXPECT_THROW(attend(true, tiles, work.narrow(0, 1, parts.bytes - 1)), c10::Error);
  attend(true, tiles, work);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionTilesOpTest, testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace normserve::kernels
