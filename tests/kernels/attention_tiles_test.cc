// SPDX-License-Identifier: Apache-2.0
// The tiles of a step against its definition: every query meets every key that it may see exactly once, and the
// parts of a query are found where they were put.
#include "kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace normserve::kernels {
namespace {

struct Queries {
  int64_t first;  // position
  int64_t count;
};

struct Step {
  AttentionTileShape shape;
  std::vector<Queries> sequences;
  std::vector<int32_t> token_sequence, positions, ints;

  Step(const std::vector<Queries>& queries, int64_t group, int64_t padding_tokens, int64_t padding_sequences)
      : sequences(queries) {
    int64_t longest = 1;
    for (size_t s = 0; s < queries.size(); ++s) {
      for (int64_t i = 0; i < queries[s].count; ++i) {
        token_sequence.push_back(static_cast<int32_t>(s));
        positions.push_back(static_cast<int32_t>(queries[s].first + i));
      }
      longest = std::max(longest, queries[s].first + queries[s].count);
    }
    shape = {static_cast<int64_t>(positions.size()) + padding_tokens,
             static_cast<int64_t>(queries.size()) + padding_sequences, (longest + 15) / 16 + 2, 16, group};
    const AttentionTilesLayout at(shape);
    ints.assign(static_cast<size_t>(at.ints) + 8, -77);
    FillAttentionTiles(shape, static_cast<int64_t>(positions.size()), token_sequence.data(), positions.data(),
                       ints.data());
  }

  int32_t At(int64_t array, int64_t i) const { return ints.at(static_cast<size_t>(array + i)); }
};

void ExpectEveryPairOnce(const Step& step) {
  const AttentionTilesLayout at(step.shape);
  for (size_t i = static_cast<size_t>(at.ints); i < step.ints.size(); ++i) EXPECT_EQ(step.ints[i], -77) << "overrun";
  const auto* valid = reinterpret_cast<const uint8_t*>(step.ints.data() + at.valid);
  const int64_t keys = step.At(at.split_keys, 0);
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> splits;  // of (token, row of the group)
  std::set<std::pair<int64_t, int64_t>> parts;                      // (row of partial results, row of the group)
  for (int64_t tile = 0; tile < at.tiles; ++tile) {
    ASSERT_LE(valid[tile], 1);
    if (valid[tile] == 0) continue;
    const int64_t s = step.At(at.sequence, tile), split = step.At(at.split, tile);
    ASSERT_LT(s, static_cast<int64_t>(step.sequences.size()));
    const Queries& queries = step.sequences[static_cast<size_t>(s)];
    const int64_t first = step.At(at.query_begin, s);
    EXPECT_EQ(step.At(at.query_begin, s + 1) - first, queries.count);
    const int64_t entries = step.At(at.table_begin, s + 1) - step.At(at.table_begin, s);
    const int64_t context = (entries - 1) * step.shape.block_size + step.At(at.last_block, s);
    EXPECT_EQ(step.At(at.table_begin, s), s * step.shape.table_blocks);
    EXPECT_EQ(context, queries.first + queries.count);
    const int64_t count = (context + keys - 1) / keys;
    for (int64_t row = step.At(at.query_tile, tile) * kTileRows, end = row + kTileRows; row < end; ++row) {
      const int64_t query = row / step.shape.group;
      if (query >= queries.count) break;
      const std::pair<int64_t, int64_t> token_row(first + query, row % step.shape.group);
      EXPECT_TRUE(splits[token_row].insert(split).second) << "twice";
      const int64_t part = step.At(at.partial_begin, s) + query * count + split;
      EXPECT_GE(part, step.At(at.merge_begin, first + query));
      EXPECT_LT(part, step.At(at.merge_begin, first + query + 1));
      EXPECT_LT(part, step.shape.tokens * step.shape.splits());
      EXPECT_TRUE(parts.insert(std::make_pair(part, token_row.second)).second) << "two parts in one place";
    }
  }
  int64_t queries = 0;
  for (const Queries& q : step.sequences) queries += q.count;
  EXPECT_EQ(splits.size(), static_cast<size_t>(queries * step.shape.group));
  for (const auto& [query, seen] : splits) {
    const size_t token = static_cast<size_t>(query.first);
    const Queries& q = step.sequences[static_cast<size_t>(step.token_sequence[token])];
    EXPECT_EQ(seen.size(), static_cast<size_t>((q.first + q.count + keys - 1) / keys));
    EXPECT_EQ(step.At(at.merge_begin, query.first + 1) - step.At(at.merge_begin, query.first),
              static_cast<int32_t>(seen.size()));
  }
  for (int64_t t = queries; t < step.shape.tokens; ++t) {
    EXPECT_EQ(step.At(at.merge_begin, t), step.At(at.merge_begin, t + 1)) << "padding has parts";
  }
}

TEST(AttentionTiles, EveryQueryMeetsEveryKeyOnce) {
  const std::vector<std::vector<Queries>> steps = {
      {{0, 1}},
      {{511, 1}, {512, 1}, {0, 1}},
      {{0, 700}},
      {{1000, 37}, {0, 16}, {5, 1}, {513, 3}},
      {{0, 4}, {0, 0}, {2047, 2}},  // one without a token
  };
  for (const auto& queries : steps) {
    for (const int64_t group : {1, 3, 4, 16, 20}) {
      for (const auto& [tokens, sequences] : {std::pair<int64_t, int64_t>{0, 0}, {5, 1}, {3, 3}}) {
        SCOPED_TRACE(testing::Message() << queries.size() << " sequences, group " << group << ", padding " << tokens);
        ExpectEveryPairOnce(Step(queries, group, tokens, sequences));
      }
    }
  }
}

TEST(AttentionTiles, AreFewEnoughForAnyStep) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<Queries> queries(1 + random() % 9);
    for (Queries& q : queries) q = {static_cast<int64_t>(random() % 1500), static_cast<int64_t>(1 + random() % 40)};
    ExpectEveryPairOnce(Step(queries, 1 + random() % 9, random() % 8, random() % 3));
  }
}

TEST(AttentionTiles, ArraysBeginWhereFlashInferWantsThem) {
  for (const int64_t tokens : {1, 2, 3, 7}) {
    const AttentionTilesLayout at({tokens, tokens, 5, 16, 3});
    for (const int64_t array : {at.query_begin, at.table_begin, at.last_block, at.partial_begin, at.merge_begin,
                                at.split_keys, at.sequence, at.query_tile, at.split, at.valid}) {
      EXPECT_EQ(array % 4, 0);
    }
  }
}

}  // namespace
}  // namespace normserve::kernels
