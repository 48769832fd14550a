// SPDX-License-Identifier: Apache-2.0
// The parts without torch: the thread pool, and the row reductions of the sampler.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/numa.h"
#include "kernels/row_softmax.h"
#include "kernels/simd_target.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

TEST(ThreadPool, EveryItemOnceInGrains) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 8, 100}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          if (threads == 1 || count <= grain) {
            EXPECT_EQ(end - begin, count);
          } else {
            EXPECT_LE(end - begin, std::max<int64_t>(grain, (count - begin) / threads));
            if (count - begin <= grain * threads) {
              EXPECT_LE(end - begin, (count - begin + threads - 1) / threads);
            } else {
              EXPECT_TRUE(begin % grain == 0 && end % grain == 0);
            }
          }
          for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)]++;
        });
        for (const auto& n : seen) EXPECT_EQ(n.load(), 1);
      }
    }
  }
}

// Back-to-back regions, so short that a worker often arrives after the work is gone.
TEST(ThreadPool, ManyShortRegionsLoseNothing) {
  ThreadPool pool(4);
  int64_t plain = 0;
  for (int round = 0; round < 20000; ++round) {
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(8, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    plain += sum.load();
    if (round % 1000 == 0) std::this_thread::yield();
  }
  EXPECT_EQ(plain, 20000 * 28);
}

TEST(ThreadPool, ThreadsStayOnTheirCpus) {
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  const std::vector<int> cpus = {allowed.back(), allowed.front()};
  std::thread([&] {  // the caller is pinned, too, and this test's own thread must not be
    ThreadPool pool(2, cpus);
    EXPECT_EQ(AllowedCpus(), allowed) << "until PinCaller";
    pool.PinCaller();
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> seen{0};
    pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
      const bool is_caller = std::this_thread::get_id() == caller;
      EXPECT_EQ(AllowedCpus(), std::vector<int>{is_caller ? cpus[0] : cpus[1]});
      ++seen;
      // Both threads take part: whoever is first waits for the other.
      for (int i = 0; i < 100000 && seen.load() < 2; ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    EXPECT_EQ(seen.load(), 2);
  }).join();
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(Numa, NodesAreThoseOfTheCpus) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "numa_nodes";
  std::filesystem::remove_all(folder);
  for (const char* cpu : {"node0/cpu0", "node0/cpu1", "node1/cpu2", "node3/cpu3"}) {
    std::filesystem::create_directories(folder / cpu);
  }
  EXPECT_EQ(NodesOf(folder, {0, 1}), std::vector<int>{0});
  EXPECT_EQ(NodesOf(folder, {1, 2, 3}), (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(NodesOf(folder / "none", {0}).empty());
}

TEST(ThreadPool, ScratchIsAlignedAndKept) {
  ThreadPool pool(1);
  float* a = pool.Scratch(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  a[99] = 5.0f;
  EXPECT_EQ(pool.Scratch(50), a);
  EXPECT_EQ(a[99], 5.0f);
  float* b = pool.Scratch(1 << 20);
  b[(1 << 20) - 1] = 1.0f;
}

TEST(ScopedPool, NestsAndRestores) {
  EXPECT_EQ(CurrentPool(), nullptr);
  ThreadPool a(1), b(1);
  {
    const ScopedPool outer(&a);
    EXPECT_EQ(CurrentPool(), &a);
    {
      const ScopedPool inner(&b);
      EXPECT_EQ(CurrentPool(), &b);
    }
    EXPECT_EQ(CurrentPool(), &a);
    std::thread([] { EXPECT_EQ(CurrentPool(), nullptr); }).join();
  }
  EXPECT_EQ(CurrentPool(), nullptr);
}

std::vector<float> RandomRow(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(n);
  for (float& v : row) v = normal(random);
  return row;
}

TEST(RowSoftmax, AgreesWithDouble) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const size_t n : {1, 3, 16, 17, 100, 257, 4096, 128256}) {
      const std::vector<float> row = RandomRow(n, 1);
      const RowMax max = MaxOfRow(row.data(), n);
      size_t index = 0;
      for (size_t i = 1; i < n; ++i) index = row[i] > row[index] ? i : index;
      EXPECT_EQ(max.index, index);
      EXPECT_EQ(max.value, row[index]);
      EXPECT_TRUE(max.finite);
      double sum = 0;
      for (const float v : row) sum += std::exp(static_cast<double>(v) - max.value);
      EXPECT_NEAR(LogSumExp(row.data(), n, max.value), std::log(sum) + max.value, 1e-6);
      std::vector<float> e(n + 1, 77.0f);
      ExpRow(row.data(), n, max.value, e.data());
      for (size_t i = 0; i < n; ++i) {
        const double want = std::exp(static_cast<double>(row[i] - max.value));
        ASSERT_NEAR(e[i], want, 3e-7 * want) << target << " " << row[i];
      }
      EXPECT_EQ(e[n], 77.0f);
    }
  }
}

TEST(RowSoftmax, LowestIndexAmongEquals) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const size_t n : {5, 40, 99}) {
      for (size_t at = 0; at + 1 < n; ++at) {
        std::vector<float> row(n, -1.0f);
        row[at] = row[n - 1] = 2.0f;
        EXPECT_EQ(MaxOfRow(row.data(), n).index, at);
      }
    }
  }
}

TEST(RowSoftmax, SeesEveryNonFiniteElement) {
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t n : {1, 16, 35}) {
        for (size_t at = 0; at < n; ++at) {
          std::vector<float> row = RandomRow(n, 2);
          row[at] = bad;
          EXPECT_FALSE(MaxOfRow(row.data(), n).finite) << target << " " << n << " " << at;
        }
      }
    }
  }
}

TEST(RowSoftmax, ExpOverItsWholeRange) {
  std::vector<float> row;
  for (float x = -110.0f; x < 89.5f; x += 0.0137f) row.push_back(x);
  std::vector<float> e(row.size());
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    ExpRow(row.data(), row.size(), 0.0f, e.data());
    for (size_t i = 0; i < row.size(); ++i) {
      const double want = std::exp(static_cast<double>(row[i]));
      if (want > std::numeric_limits<float>::max()) {
        ASSERT_EQ(e[i], INFINITY) << row[i];
      } else {
        ASSERT_NEAR(e[i], want, 2e-7 * want + 1.5e-45) << target << " " << row[i];
      }
    }
    const float odd[] = {NAN, INFINITY, -INFINITY};
    float out[3];
    ExpRow(odd, 3, 0.0f, out);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], INFINITY);
    EXPECT_EQ(out[2], 0.0f);
  }
}

TEST(SimdTarget, UnknownNamesAreRefused) {
  const std::string best = SimdTargetName();
  EXPECT_FALSE(LimitSimdTarget("AVX99"));
  EXPECT_EQ(SimdTargetName(), best);
}

#if defined(__aarch64__)
// On another target the tests of scripts/test --neon would say nothing of NEON.
TEST(SimdTarget, OfAarch64IsNeon) {
  EXPECT_EQ(std::string(SimdTargetName()).substr(0, 4), "NEON") << SimdTargetName();
  RecordProperty("target", SimdTargetName());
}
#endif

}  // namespace
}  // namespace normserve::kernels
