// SPDX-License-Identifier: Apache-2.0
// What linear layers ask memory for besides weights: every planned block once, and nothing else.
#include "kernels/read_ahead.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace normserve::kernels {
namespace {

constexpr int64_t kBlock = 16;
constexpr size_t kBytes = 640;

struct Batch {
  std::vector<int32_t> tables, sequence, positions;
  int64_t width = 0;

  ReadAheadStep Step() const {
    return {tables.data(), width, sequence.data(), positions.data(), static_cast<int64_t>(sequence.size()), kBlock, kBytes};
  }
};

// A prompt of three tokens that ends in its second block, two sequences that share their first, one of a single token.
Batch Mixed() { return {{3, 4, 9, 7, 2, 9, 7, 8, 9, 5, 9, 9}, {0, 0, 0, 1, 2, 3}, {17, 18, 19, 47, 31, 0}, 3}; }

// How often each block is asked for, by takes of a size that divides a block.
std::map<int64_t, int> Taken(ReadAhead& ahead, const char* cache, size_t size) {
  std::map<int64_t, int> counts;
  while (const char* at = ahead.Take(size)) ++counts[(at - cache) / static_cast<int64_t>(kBytes)];
  return counts;
}

TEST(ReadAhead, TakesEveryPlannedBlockOfBothCachesOnce) {
  const std::vector<char> memory(20 * kBytes);
  const char* keys = memory.data();
  const char* values = keys + 10 * kBytes;
  ReadAhead ahead(size_t{1} << 20);
  EXPECT_EQ(ahead.Take(64), nullptr) << "nothing is planned";
  const Batch batch = Mixed();
  ahead.Plan(batch.Step());
  EXPECT_EQ(ahead.Take(64), nullptr) << "aimed at nothing";
  for (int layer = 0; layer < 2; ++layer) {
    ahead.Aim(keys, values);
    std::map<int64_t, int> want;
    for (const int64_t block : {2, 3, 4, 5, 7, 8, 9}) want[block] = want[10 + block] = 2;
    EXPECT_EQ(Taken(ahead, keys, kBytes / 2), want);
    EXPECT_EQ(ahead.Take(64), nullptr);
  }
  ahead.Aim(keys, values);
  ahead.AimAtNothing();
  EXPECT_EQ(ahead.Take(64), nullptr);
}

TEST(ReadAhead, PlansTheFirstTokensBlocksWhereNotAllHaveRoom) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = Mixed();
  for (const size_t blocks : {0, 1, 3}) {
    ReadAhead ahead(2 * blocks * kBytes + kBytes);
    ahead.Plan(batch.Step());
    ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
    std::map<int64_t, int> want;
    for (const int64_t block : std::vector<int64_t>{3, 4, 7}) {
      if (want.size() < 2 * blocks) want[block] = want[10 + block] = 1;
    }
    EXPECT_EQ(Taken(ahead, memory.data(), kBytes), want) << blocks;
  }
}

// A take ends where a run does: the next one begins with the next run, and nothing is left out.
TEST(ReadAhead, LongTakesReachEveryRun) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = Mixed();
  ReadAhead ahead(size_t{1} << 20);
  ahead.Plan(batch.Step());  // 2 3 4 5 and 7 8 9
  ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
  std::vector<int64_t> begins;
  while (const char* at = ahead.Take(3 * kBytes)) begins.push_back((at - memory.data()) / static_cast<int64_t>(kBytes));
  EXPECT_EQ(begins, (std::vector<int64_t>{2, 5, 7, 12, 15, 17}));
}

// What the layer before multiplied is the measure; of a step's first layer it is that of the step before.
TEST(ReadAhead, KeepsPaceWithTheWeights) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = Mixed();
  ReadAhead ahead(size_t{1} << 20);
  for (int step = 0; step < 2; ++step) {
    ahead.Multiply(5);  // the head's, which is no layer
    ahead.Plan(batch.Step());
    ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
    if (step == 0) {
      EXPECT_EQ(Taken(ahead, memory.data(), kBytes).size(), 14u) << "nothing to go by yet";
    }
    ahead.Multiply(600);
    ahead.Multiply(400);
    ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
    EXPECT_EQ(ahead.Take(kBytes), nullptr);
    ahead.Multiply(250);
    const size_t early = Taken(ahead, memory.data(), kBytes).size();
    EXPECT_GE(early, 4u);
    EXPECT_LE(early, 6u);
    ahead.Multiply(650);
    EXPECT_EQ(early + Taken(ahead, memory.data(), kBytes).size(), 14u) << "before the layer's end";
  }
}

TEST(ReadAhead, IsCurrentInItsScopeAlone) {
  ReadAhead ahead(1);
  EXPECT_EQ(CurrentReadAhead(), nullptr);
  {
    const ScopedReadAhead scope(&ahead);
    EXPECT_EQ(CurrentReadAhead(), &ahead);
  }
  EXPECT_EQ(CurrentReadAhead(), nullptr);
  EXPECT_GT(MostReadAheadBytes(), size_t{0});
}

}  // namespace
}  // namespace normserve::kernels
