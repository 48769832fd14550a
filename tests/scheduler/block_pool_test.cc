// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace normserve::scheduler {
namespace {

using Tokens = std::vector<uint32_t>;

// Allocates and publishes the full blocks of `tokens`, as a sequence that computed them would.
std::vector<BlockId> Fill(BlockPool& pool, const Tokens& tokens) {
  BlockPool::Match match = pool.AcquirePrefix(tokens);
  const uint32_t size = pool.block_size();
  for (size_t i = match.blocks.size(); (i + 1) * size <= tokens.size(); ++i) {
    match.blocks.push_back(*pool.Allocate());
    match.prefix = pool.Publish(match.blocks.back(), match.prefix,
                                absl::MakeConstSpan(tokens).subspan(i * size, size));
  }
  return match.blocks;
}

void ReleaseAll(BlockPool& pool, const std::vector<BlockId>& blocks) {
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) pool.Release(*b);
}

TEST(BlockPoolTest, HandsOutEachBlockOnce) {
  BlockPool pool(3, 4, true);
  std::vector<BlockId> blocks = {*pool.Allocate(), *pool.Allocate(), *pool.Allocate()};
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks, (std::vector<BlockId>{0, 1, 2}));
  EXPECT_FALSE(pool.Allocate().has_value());
  EXPECT_EQ(pool.used(), 3u);
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 1u);
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, FindsTheLongestChainOfFullBlocks) {
  BlockPool pool(8, 2, true);
  const auto blocks = Fill(pool, {1, 2, 3, 4, 5});
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(pool.AcquirePrefix(Tokens{1, 2, 3, 4, 5}).blocks, blocks);
  EXPECT_EQ(pool.owners(blocks[0]), 2u);
  EXPECT_EQ(pool.AcquirePrefix(Tokens{1, 2, 3, 9}).blocks, (std::vector<BlockId>{blocks[0]}));
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{1}).blocks.empty());
  // The same tokens after another beginning are other keys.
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{3, 4}).blocks.empty());
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, HashCollisionsServeNobodyElsesBlocks) {
  BlockPool pool(8, 2, true,
                 [](BlockPool::PrefixId, absl::Span<const uint32_t>) -> size_t { return 7; });
  const auto a = Fill(pool, {1, 2, 3, 4});
  const auto b = Fill(pool, {5, 6, 3, 4});
  EXPECT_NE(a[1], b[1]);
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{3, 4}).blocks.empty());
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{2, 1}).blocks.empty());
  EXPECT_EQ(pool.AcquirePrefix(Tokens{5, 6, 3, 4}).blocks, b);
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, EvictsTheLeastRecentlyUsedAndChildrenFirst) {
  BlockPool pool(4, 2, true);
  const auto a = Fill(pool, {1, 2, 3, 4});
  const auto b = Fill(pool, {5, 6, 7, 8});
  ReleaseAll(pool, a);
  ReleaseAll(pool, b);
  EXPECT_EQ(pool.cached(), 4u);
  ReleaseAll(pool, pool.AcquirePrefix(Tokens{1, 2, 3, 4}).blocks);  // a is now the younger
  EXPECT_EQ(pool.Allocate(), b[1]);
  EXPECT_EQ(pool.Allocate(), b[0]);
  EXPECT_EQ(pool.Allocate(), a[1]);
  EXPECT_EQ(pool.AcquirePrefix(Tokens{1, 2, 3, 4}).blocks, (std::vector<BlockId>{a[0]}));
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, EvictedContentIsNotFoundThroughItsChildren) {
  BlockPool pool(2, 2, true);
  const auto blocks = Fill(pool, {1, 2, 3, 4});
  // Against the rule of release order, so that the parent goes first.
  pool.Release(blocks[0]);
  pool.Release(blocks[1]);
  const BlockId reused = *pool.Allocate();
  EXPECT_EQ(reused, blocks[0]);
  pool.Publish(reused, BlockPool::kEmptyPrefix, Tokens{8, 9});
  EXPECT_EQ(pool.AcquirePrefix(Tokens{8, 9, 3, 4}).blocks.size(), 1u);
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{1, 2, 3, 4}).blocks.empty());
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, EqualContentKeepsItsFirstBlock) {
  BlockPool pool(4, 2, true);
  const BlockId first = *pool.Allocate();
  const BlockId second = *pool.Allocate();
  const auto id = pool.Publish(first, BlockPool::kEmptyPrefix, Tokens{1, 2});
  EXPECT_EQ(pool.Publish(second, BlockPool::kEmptyPrefix, Tokens{1, 2}), id);
  pool.Release(second);
  EXPECT_EQ(pool.cached(), 0u);  // the private twin is simply free
  EXPECT_EQ(pool.AcquirePrefix(Tokens{1, 2}).blocks, (std::vector<BlockId>{first}));
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, ForgottenBlocksAreNeverFoundAgain) {
  BlockPool pool(4, 2, true);
  const auto blocks = Fill(pool, {1, 2, 3, 4});
  pool.Forget(blocks[0]);
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{1, 2}).blocks.empty());
  ReleaseAll(pool, blocks);
  EXPECT_EQ(pool.cached(), 1u);
  pool.Forget(blocks[1]);
  EXPECT_EQ(pool.cached(), 0u);
  EXPECT_EQ(pool.available(), 4u);
  EXPECT_TRUE(pool.Check().ok());
}

TEST(BlockPoolTest, WithoutPrefixCacheNothingIsKept) {
  BlockPool pool(4, 2, false);
  const auto blocks = Fill(pool, {1, 2, 3, 4});
  ReleaseAll(pool, blocks);
  EXPECT_EQ(pool.cached(), 0u);
  EXPECT_TRUE(pool.AcquirePrefix(Tokens{1, 2}).blocks.empty());
}

// Content of each owned or cached block is tracked beside the pool; what a lookup returns must
// spell exactly what was asked for.
TEST(BlockPoolTest, RandomUseNeverReturnsWrongContent) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    BlockPool pool(
        1 + random() % 24, 2, true,
        round % 2
            ? &BlockPool::HashBlock
            : [](BlockPool::PrefixId, absl::Span<const uint32_t> t) -> size_t { return t[0]; });
    std::vector<Tokens> content(pool.total());  // whole chain up to and with the block
    std::vector<std::vector<BlockId>> owned;
    for (int step = 0; step < 500; ++step) {
      if (!owned.empty() && random() % 2) {
        const size_t victim = random() % owned.size();
        ReleaseAll(pool, owned[victim]);
        owned.erase(owned.begin() + victim);
      } else {
        Tokens tokens(random() % 9);
        for (uint32_t& t : tokens) t = random() % 2;
        BlockPool::Match match = pool.AcquirePrefix(tokens);
        for (size_t i = 0; i < match.blocks.size(); ++i) {
          EXPECT_EQ(content[match.blocks[i]], Tokens(tokens.begin(), tokens.begin() + 2 * i + 2));
        }
        for (size_t i = match.blocks.size(); 2 * i + 2 <= tokens.size(); ++i) {
          const auto block = pool.Allocate();
          if (!block) break;
          content[*block] = Tokens(tokens.begin(), tokens.begin() + 2 * i + 2);
          match.blocks.push_back(*block);
          match.prefix =
              pool.Publish(*block, match.prefix, absl::MakeConstSpan(tokens).subspan(2 * i, 2));
          if (random() % 16 == 0) pool.Forget(*block);
        }
        owned.push_back(match.blocks);
      }
      ASSERT_TRUE(pool.Check().ok()) << pool.Check();
    }
  }
}

}  // namespace
}  // namespace normserve::scheduler
