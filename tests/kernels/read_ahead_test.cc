// SPDX-License-Identifier: Apache-2.0
// What linear layers ask memory for besides weights: every planned block once, and nothing else.
#include "kernels/read_ahead.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

namespace normserve::kernels {
namespace {

constexpr int64_t kBlock = 16;
constexpr size_t kBytes = 640;

struct Batch {
  std::vector<int32_t> tables, sequence, positions;
  int64_t width = 0;

  ReadAheadStep Step() const {
    ReadAheadStep step;
    step.block_tables = tables.data();
    step.block_tables_stride = step.max_blocks = width;
    step.sequences = static_cast<int64_t>(tables.size()) / width;
    step.token_sequence = sequence.data();
    step.positions = positions.data();
    step.tokens = static_cast<int64_t>(sequence.size());
    step.blocks = 10000;
    step.block_size = kBlock;
    step.block_bytes = kBytes;
    return step;
  }
};

// A prompt of three tokens that ends in its second block, two sequences that share their first, one of a single token.
Batch Mixed() { return {{3, 4, 9, 7, 2, 9, 7, 8, 9, 5, 9, 9}, {0, 0, 0, 1, 2, 3}, {17, 18, 19, 47, 31, 0}, 3}; }

// How many parts of a block's `parts` are asked for, by takes of one or several parts without any weights.
std::map<int64_t, int> Taken(ReadAhead& ahead, const char* cache, size_t parts = 1, size_t most = 1) {
  std::map<int64_t, int> counts;
  const size_t size = kBytes / parts;
  for (;;) {
    const ReadAhead::Lines lines = ahead.Take(0, size, most);
    if (lines.bytes == 0) return counts;
    EXPECT_LE(lines.bytes, most * size);
    EXPECT_EQ(lines.bytes % size, 0u);
    for (size_t at = 0; at < lines.bytes; at += size) ++counts[(lines.begin + at - cache) / static_cast<int64_t>(kBytes)];
  }
}
bool HasNothing(ReadAhead& ahead) { return ahead.Take(0, 64, 1).bytes == 0; }

TEST(ReadAhead, TakesEveryPlannedBlockOfBothCachesOnce) {
  const std::vector<char> memory(20 * kBytes);
  const char* keys = memory.data();
  const char* values = keys + 10 * kBytes;
  ReadAhead ahead(size_t{1} << 20);
  EXPECT_TRUE(HasNothing(ahead)) << "nothing is planned";
  const Batch batch = Mixed();
  ahead.Plan(batch.Step());
  EXPECT_TRUE(HasNothing(ahead)) << "aimed at nothing";
  for (int layer = 0; layer < 2; ++layer) {
    ahead.Aim(keys, values);
    std::map<int64_t, int> want;
    for (const int64_t block : {2, 3, 4, 5, 7, 8, 9}) want[block] = want[10 + block] = 2;
    EXPECT_EQ(Taken(ahead, keys, 2), want);
    EXPECT_TRUE(HasNothing(ahead));
  }
  ahead.Aim(keys, values);
  ahead.AimAtNothing();
  EXPECT_TRUE(HasNothing(ahead));
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
    EXPECT_EQ(Taken(ahead, memory.data()), want) << blocks;
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
  for (ReadAhead::Lines lines; (lines = ahead.Take(0, 3 * kBytes, 1)).bytes > 0;) {
    begins.push_back((lines.begin - memory.data()) / static_cast<int64_t>(kBytes));
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{2, 5, 7, 12, 15, 17}));
}

// What the layer before multiplied is the measure; of a step's first layer it is that of the step before.
TEST(ReadAhead, KeepsPaceWithTheWeights) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = Mixed();
  ReadAhead ahead(size_t{1} << 20);
  const auto multiply = [&](size_t weights) { return ahead.Take(weights, kBytes, 1).bytes / kBytes; };
  for (int step = 0; step < 2; ++step) {
    multiply(5);  // of the last layer, which takes nothing
    ahead.Plan(batch.Step());
    ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
    if (step == 0) {
      EXPECT_EQ(Taken(ahead, memory.data()).size(), 14u) << "nothing to go by yet";
    }
    multiply(600);
    multiply(400);
    ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
    EXPECT_TRUE(HasNothing(ahead));
    EXPECT_EQ(multiply(20), 0u) << "less than a unit is due";
    const size_t early = multiply(230) + Taken(ahead, memory.data()).size();
    EXPECT_GE(early, 4u);
    EXPECT_LE(early, 6u);
    EXPECT_EQ(early + multiply(650) + Taken(ahead, memory.data()).size(), 14u) << "before the layer's end";
  }
}

// Several units at once, and less than one where that is all there is.
TEST(ReadAhead, TakesWholeUnits) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = Mixed();
  ReadAhead ahead(size_t{1} << 20);
  ahead.Plan(batch.Step());  // 2 3 4 5 and 7 8 9
  ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
  const size_t unit = kBytes + kBytes / 2;
  std::vector<size_t> bytes;
  for (ReadAhead::Lines lines; (lines = ahead.Take(0, unit, 2)).bytes > 0;) bytes.push_back(lines.bytes);
  EXPECT_EQ(bytes, (std::vector<size_t>{2 * unit, kBytes, 2 * unit, 2 * unit, kBytes, 2 * unit}));
}

TEST(ReadAhead, SharedBlocksLeaveRoomForOthers) {
  const std::vector<char> memory(40 * kBytes);
  const Batch batch = {{1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 6}, {0, 1, 2, 3}, {40, 40, 40, 40}, 3};
  ReadAhead ahead(2 * 5 * kBytes);
  ahead.Plan(batch.Step());
  ahead.Aim(memory.data(), memory.data() + 20 * kBytes);
  std::map<int64_t, int> want;
  for (const int64_t block : {1, 2, 3, 4, 5}) want[block] = want[20 + block] = 1;
  EXPECT_EQ(Taken(ahead, memory.data()), want);
}

// Who is wrong about them is told by attention.
TEST(ReadAhead, LeavesOutTokensThatHaveNoBlocks) {
  const std::vector<char> memory(20 * kBytes);
  const Batch batch = {{1, 2, 3, 4, -1, 10000}, {-1, 3, 0, 1, 2}, {5, 5, -7, 1000, 20}, 2};
  ReadAhead ahead(size_t{1} << 20);
  ahead.Plan(batch.Step());
  ahead.Aim(memory.data(), memory.data() + 10 * kBytes);
  EXPECT_EQ(Taken(ahead, memory.data()), (std::map<int64_t, int>{{3, 1}, {4, 1}, {13, 1}, {14, 1}}));
}

TEST(ReadAhead, ThreadsTakeEveryBlockOnce) {
  constexpr int32_t kBlocks = 5000;
  Batch batch{{}, {0}, {kBlocks * kBlock - 1}, kBlocks};
  for (int32_t b = 0; b < kBlocks; ++b) batch.tables.push_back(b + b / 7);  // with gaps
  const std::vector<char> memory(12000 * kBytes);
  ReadAhead ahead(size_t{1} << 30);
  ahead.Plan(batch.Step());
  ahead.Aim(memory.data(), memory.data() + 6000 * kBytes);
  std::vector<std::map<int64_t, int>> taken(4);
  std::vector<std::thread> threads;
  for (auto& mine : taken) threads.emplace_back([&] { mine = Taken(ahead, memory.data()); });
  for (std::thread& thread : threads) thread.join();
  std::map<int64_t, int> all;
  for (const auto& mine : taken) {
    for (const auto& [block, count] : mine) all[block] += count;
  }
  ASSERT_EQ(all.size(), 2u * kBlocks);
  for (const auto& [block, count] : all) ASSERT_EQ(count, 1) << block;
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
