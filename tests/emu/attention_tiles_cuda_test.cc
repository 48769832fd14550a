// SPDX-License-Identifier: Apache-2.0
// Attention by tiles against our own kernel, in bfloat16, as FlashInfer takes it. On a GPU this is FlashInfer's
// kernel; emulated, a loop stands in for it, and what is tested are the tiles' arrays and the cache's layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "emu/paged_test.h"
#include "kernels/attention_tiles.h"

namespace normserve::kernels {
namespace {

using Element = __nv_bfloat16;

struct Shape {
  int64_t group, kv_heads, dim, block_size;
};

struct Queries {
  size_t sequence;
  int64_t first, count;
};

// Sequences in a cache of either layout.
struct World {
  Shape s;
  Paging paging;
  Banded<Element> transposed, by_position, values;

  World(const Shape& shape, const std::vector<int64_t>& contexts)
      : s(shape), paging(contexts, shape.block_size, 5),
        transposed(static_cast<size_t>(paging.blocks * s.kv_heads * s.dim * s.block_size)),
        by_position(transposed.size()), values(transposed.size()) {
    // FlashInfer loads table entries past a context's end, though not what they name.
    for (int32_t& block : paging.tables) block = std::max(block, 0);
    for (size_t i = 0; i < contexts.size(); ++i) {
      const std::vector<float> x = Normals(static_cast<size_t>(contexts[i] * s.kv_heads * s.dim * 2), 90 + i);
      size_t next = 0;
      for (int64_t p = 0; p < contexts[i]; ++p) {
        const int64_t slot = paging.Slot(i, p), block = slot / s.block_size, offset = slot % s.block_size;
        for (int64_t head = 0; head < s.kv_heads; ++head) {
          const int64_t at = block * s.kv_heads + head;
          for (int64_t d = 0; d < s.dim; ++d) {
            const size_t row = static_cast<size_t>((at * s.block_size + offset) * s.dim + d);
            transposed.Set(static_cast<size_t>((at * s.dim + d) * s.block_size + offset), x[next]);
            by_position.Set(row, x[next++]);
            values.Set(row, x[next++]);
          }
        }
      }
    }
  }

  // [tokens, heads * dim] of a step, by tiles or our own way. `padding`: tokens that are nobody's, and as many more
  // columns of the block table.
  std::vector<Element> Attend(const std::vector<Queries>& step, bool tiles, int64_t padding = 0) const {
    std::vector<int32_t> tables, sequence, position;
    std::vector<float> q;
    const int64_t heads = s.group * s.kv_heads, width = (s.group + 2) * s.kv_heads * s.dim;
    for (size_t i = 0; i < step.size(); ++i) {
      const auto row = paging.tables.begin() + static_cast<int64_t>(step[i].sequence) * paging.stride;
      tables.insert(tables.end(), row, row + paging.stride);
      tables.insert(tables.end(), static_cast<size_t>(padding), 0);
      for (int64_t t = step[i].first; t < step[i].first + step[i].count; ++t) {
        sequence.push_back(static_cast<int32_t>(i));
        position.push_back(static_cast<int32_t>(t));
        const std::vector<float> x = Normals(static_cast<size_t>(width), 1000 * step[i].sequence + t);
        q.insert(q.end(), x.begin(), x.end());
      }
    }
    const int64_t live = static_cast<int64_t>(position.size()), tokens = live + padding;
    const int64_t columns = paging.stride + padding;
    q.resize(static_cast<size_t>(tokens * width), 1.0f);
    for (int64_t t = 0; t < padding && !tiles; ++t) {  // our own way they read a token's cache
      sequence.push_back(0);
      position.push_back(0);
    }
    std::vector<Element> qkv;
    for (const float v : q) qkv.push_back(FromFloat<Element>(v));
    Banded<Element> out(static_cast<size_t>(tokens * heads * s.dim));
    AttentionRows rows;
    rows.type = rows.cache_type = RowType::kBFloat16;
    rows.qkv = qkv.data();
    rows.qkv_stride = width;
    rows.k_cache = (tiles ? by_position : transposed).data();
    rows.v_cache = values.data();
    rows.block_tables = tables.data();
    rows.block_tables_stride = columns;
    rows.token_sequence = sequence.data();
    rows.positions = position.data();
    rows.scale = 1.0f / std::sqrt(static_cast<float>(s.dim));
    rows.heads = heads;
    rows.kv_heads = s.kv_heads;
    rows.head_dim = s.dim;
    rows.block_size = s.block_size;
    rows.out = out.data();
    rows.out_stride = heads * s.dim;
    const AttentionTileShape shape{tokens, static_cast<int64_t>(step.size()), columns, s.block_size, s.group};
    const size_t elements = static_cast<size_t>(live * heads * s.dim);
    if (!tiles) {
      AttentionRowsCuda(rows, tokens, columns * s.block_size, nullptr, nullptr);
      return {out.data(), out.data() + elements};
    }
    std::vector<int32_t> ints(static_cast<size_t>(AttentionTilesLayout(shape).ints));
    FillAttentionTiles(shape, live, sequence.data(), position.data(), ints.data());
    const TileParts parts(shape.tokens, shape.splits(), heads, s.dim, sizeof(Element));
    Banded<Element> partial(static_cast<size_t>(parts.elements));
    Banded<float> stats(static_cast<size_t>(parts.rows * heads));
    AttentionTileArgs args{rows, shape, ints.data()};
    if (parts.rows > 0) {
      args.partial = partial.data();
      args.partial_stats = stats.data();
    }
    EXPECT_EQ(AttentionTilesCuda(args, nullptr), "");
    return {out.data(), out.data() + elements};
  }
};

class AttentionTilesCudaTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const std::string fault = AttentionTilesFault(RowType::kBFloat16, GetParam().dim);
    if (!fault.empty()) GTEST_SKIP() << fault;
  }
};

TEST_P(AttentionTilesCudaTest, AgreesWithOurOwnKernel) {
  const World world(GetParam(), {1, 17, 530, 1100});
  const std::vector<std::pair<std::vector<Queries>, int64_t>> steps = {
      {{{0, 0, 1}, {1, 16, 1}, {2, 529, 1}, {3, 1099, 1}}, 0},
      {{{0, 0, 1}, {2, 529, 1}, {3, 1099, 1}}, 5},
      {{{3, 0, 9}}, 0},
      {{{2, 500, 30}, {0, 0, 1}, {3, 1000, 8}}, 2},
  };
  for (const auto& [step, padding] : steps) {
    const std::vector<Element> want = world.Attend(step, false), got = world.Attend(step, true, padding);
    ASSERT_EQ(got.size(), want.size());
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double difference = std::fabs(ToFloat(got[i]) - ToFloat(want[i]));
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    EXPECT_LT(worst, 0.02) << step.size() << " sequences";  // values of size 1, weights rounded to bfloat16
  }
}

TEST_P(AttentionTilesCudaTest, ARowsBitsDoNotDependOnItsBatch) {
  const World world(GetParam(), {40, 530, 1100});
  const auto alone = world.Attend({{1, 529, 1}}, true);
  const auto beside = world.Attend({{0, 10, 8}, {1, 529, 1}, {2, 1099, 1}}, true);
  const auto in_chunk = world.Attend({{1, 524, 6}}, true);
  EXPECT_TRUE(SameBits(alone.data(), beside.data() + 8 * alone.size(), alone.size()));
  EXPECT_TRUE(SameBits(alone.data(), in_chunk.data() + 5 * alone.size(), alone.size()));
}

// FlashInfer's kernel takes keys in steps of 128 or 256: queries on both sides of a multiple share a tile. On a GPU a
// row's bits would differ in one element of many thousands if what it may not see were not exactly nothing.
TEST_P(AttentionTilesCudaTest, ARowsBitsDoNotDependOnTheQueriesOfItsTile) {
  std::vector<int64_t> contexts(12, 394);
  const World world(GetParam(), contexts);
  for (size_t sequence = 0; sequence < contexts.size(); ++sequence) {
    for (const int64_t first : {122, 250, 380}) {
      const auto chunk = world.Attend({{sequence, first, 12}}, true);
      for (const int64_t query : {0, 4, 5, 6}) {
        const auto alone = world.Attend({{sequence, first + query, 1}}, true);
        const auto* row = chunk.data() + static_cast<size_t>(query) * alone.size();
        EXPECT_TRUE(SameBits(alone.data(), row, alone.size())) << sequence << " at " << first + query;
      }
    }
  }
}

// More splits than the merging kernel takes at a time, and one beside them.
TEST_P(AttentionTilesCudaTest, ManySplitsAreMerged) {
  const World world(GetParam(), {8800, 30});
  const std::vector<Queries> step = {{0, 8799, 1}, {1, 29, 1}};
  const std::vector<Element> want = world.Attend(step, false), got = world.Attend(step, true);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(ToFloat(got[i]), ToFloat(want[i]), 0.02) << i;
  const auto alone = world.Attend({{1, 20, 10}}, true);
  const size_t row = alone.size() / 10;
  EXPECT_TRUE(SameBits(alone.data() + 9 * row, got.data() + row, row));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTilesCudaTest,
                         testing::Values(Shape{1, 2, 64, 16}, Shape{4, 2, 64, 48}, Shape{3, 1, 128, 16},
                                         Shape{17, 1, 64, 32}),
                         [](const auto& info) {
                           return "group" + std::to_string(info.param.group) + "dim" + std::to_string(info.param.dim);
                         });

}  // namespace
}  // namespace normserve::kernels
