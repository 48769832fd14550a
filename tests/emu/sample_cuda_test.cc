// SPDX-License-Identifier: Apache-2.0
// The sampling kernel in the emulator against the CPU's sampler: the same id for every combination of
// parameters, ties included; the same bits in either order of threads and beside any other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emu/sample_case.h"
#include "kernels/row_softmax.h"
#include "kernels/simd_target.h"

namespace normserve::kernels {
namespace {

using engine::SamplingParams;

// One of `choices`, by chance.
template <class T>
T Any(std::mt19937& random, std::initializer_list<T> choices) {
  return choices.begin()[random() % choices.size()];
}

std::vector<uint32_t> AnyIds(std::mt19937& random, size_t vocab, size_t count) {
  std::vector<uint32_t> ids(count);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % vocab);
  return ids;
}

SampleCase AnyCase(std::mt19937& random, size_t vocab) {
  SampleCase c;
  const float spread = Any(random, {0.5f, 3.0f, 3.0f, 6.0f});
  std::normal_distribution<float> normal(0.0f, spread);
  c.logits.resize(vocab);
  for (float& x : c.logits) x = normal(random);
  c.params.temperature = Any(random, {0.0f, 1e-5f, 0.3f, 0.8f, 1.0f, 1.5f, 1e30f});
  c.params.top_k = Any(random, {0u, 0u, 1u, 3u, 50u, 700u, 40000u});
  c.params.top_p = Any(random, {1.0f, 1.0f, 0.95f, 0.6f, 0.1f, 0.0f});
  c.params.min_p = Any(random, {0.0f, 0.0f, 0.01f, 0.2f, 1.0f});
  c.params.seed = random();
  c.prompt = AnyIds(random, vocab, random() % 40);
  c.generated = AnyIds(random, vocab, random() % 20);
  c.params.repetition_penalty = Any(random, {1.0f, 1.0f, 1.3f, 0.7f});
  c.params.presence_penalty = Any(random, {0.0f, 0.0f, 0.8f});
  c.params.frequency_penalty = Any(random, {0.0f, 0.0f, 0.5f, -0.5f});
  if (random() % 3 == 0) c.params.logit_bias = {{0, 4.0f}, {static_cast<uint32_t>(vocab) - 1, -3.0f}};
  if (random() % 4 == 0) {
    const auto largest = std::max_element(c.logits.begin(), c.logits.end()) - c.logits.begin();
    c.banned = {static_cast<uint32_t>(largest), static_cast<uint32_t>(vocab) + 5, 0};
    if (vocab == 1) c.banned.pop_back();
  }
  c.scoring = random() % 8 == 0;
  c.target = static_cast<uint32_t>(random() % vocab);
  c.logprob = random() % 2 == 0;
  c.top_logprobs = Any(random, {0u, 0u, 1u, 5u, 32u});
  return c;
}

TEST(SampleCuda, DecidesAsTheCpuDoes) {
  std::mt19937 random(7);
  for (const auto& [vocab, count] : {std::pair<size_t, int>{1, 15}, {7, 100}, {1000, 100}, {32003, 70}}) {
    std::vector<SampleCase> cases;
    for (int i = 0; i < count; ++i) cases.push_back(AnyCase(random, vocab));
    Check(cases);
  }
}

// Logits of few values, so that every cut lies among equals; a vocabulary within the kernel's list of
// candidates, and two beyond it.
TEST(SampleCuda, EqualLogitsAreInOrderOfId) {
  std::mt19937 random(8);
  for (const size_t vocab : {50, 4500, 9001}) {
    std::vector<SampleCase> cases;
    for (int i = 0; i < 30; ++i) {
      SampleCase c = AnyCase(random, vocab);
      const float step = Any(random, {0.5f, 2.0f, 1000.0f});  // the last: all equal
      for (float& x : c.logits) x = std::round(x / step) * step * (random() % 2 == 0 ? 1.0f : -1.0f);
      if (step == 1000.0f) std::fill(c.logits.begin(), c.logits.end(), random() % 2 == 0 ? 0.0f : -3.0f);
      c.params.temperature = Any(random, {0.0f, 0.7f, 1.0f});
      c.top_logprobs = 32;
      cases.push_back(c);
    }
    Check(cases);
  }
}

TEST(SampleCuda, NegativeZeroEqualsZero) {
  SampleCase c;
  c.logits = {-1.0f, -0.0f, 0.0f, -0.0f};
  c.top_logprobs = 4;
  EXPECT_EQ(Check({c}).front().id, 1);
  EXPECT_EQ(Check({c}).front().top_ids[2], 3);
}

// What the list of the largest items does not hold: a flat nucleus, a large k, and the largest logits
// where one and the same thread reads them.
TEST(SampleCuda, CutsBeyondTheShortList) {
  constexpr size_t kVocab = 12007;
  std::mt19937 random(9);
  std::vector<SampleCase> cases;
  for (const bool by_thread : {false, true}) {
    for (const uint32_t top_k : {0u, 6000u}) {
      for (const float top_p : {0.999f, 0.5f, 1.0f}) {
        for (const float spread : {0.01f, 1.0f, 20.0f}) {
          SampleCase c = AnyCase(random, kVocab);
          std::normal_distribution<float> normal(0.0f, spread);
          for (float& x : c.logits) x = normal(random);
          if (by_thread) {
            std::vector<float> sorted = c.logits;
            std::sort(sorted.begin(), sorted.end());
            for (size_t i = 0; i < kVocab; ++i) c.logits[i * 1024 % kVocab] = sorted[i];
          }
          c.params.temperature = 1.0f;
          c.params.top_k = top_k;
          c.params.top_p = top_p;
          c.params.min_p = 0.0f;
          c.scoring = false;
          cases.push_back(c);
        }
      }
    }
  }
  Check(cases);
}

// Logits so near to each other that the weights are a few neighbouring floats: their order is the CPU's
// only if they are the CPU's bit for bit.
TEST(SampleCuda, WeightsAreThoseOfTheCpu) {
  const std::string target = SimdTargetName();
  if (target.rfind("AVX", 0) != 0) GTEST_SKIP() << target << " has no fused multiply-add";
  std::mt19937 random(12);
  std::vector<SampleCase> cases;
  std::normal_distribution<float> normal(0.0f, 1e-6f);
  for (int i = 0; i < 30; ++i) {
    SampleCase c;
    c.logits.resize(2000);
    for (float& x : c.logits) x = normal(random);
    c.logits[0] = Any(random, {0.2f, 0.34f, 5.0f, 9.4f});
    c.params.temperature = Any(random, {1.0f, 0.9f});
    c.params.top_k = Any(random, {0u, 300u});
    c.params.top_p = 0.9f;
    c.params.seed = random();
    cases.push_back(c);
  }
  Check(cases);
}

TEST(SampleCuda, RowsThatAreNotFinite) {
  std::mt19937 random(10);
  std::vector<SampleCase> cases;
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    for (const size_t at : {0, 1023, 1024, 2999}) {
      SampleCase c = AnyCase(random, 3000);
      c.logits[at] = odd;
      cases.push_back(c);
      cases.push_back(AnyCase(random, 3000));  // its neighbour does not care
    }
  }
  const std::vector<SampledRow> rows = Check(cases);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].finite, static_cast<int>(i % 2));
}

TEST(SampleCuda, ExtremeLogitsAndParameters) {
  const float huge = std::numeric_limits<float>::max();
  std::vector<SampleCase> cases;
  for (const float temperature : {0.0f, 1e-30f, 1e-5f, 1e-4f, 1.0f, 1e30f}) {
    for (const float penalty : {0.001f, 1.0f, 10.0f}) {
      SampleCase c;
      c.logits = {huge, -huge, 0.0f, 1e-40f};
      c.params.temperature = temperature;
      c.params.repetition_penalty = penalty;
      c.params.top_p = penalty == 10.0f ? 1.0f : 0.9f;
      c.params.logit_bias = {{1, 100.0f}};
      c.params.seed = cases.size();
      c.prompt = {0, 1, 2, 3};
      c.top_logprobs = 4;
      cases.push_back(c);
    }
  }
  Check(cases);
}

TEST(SampleCuda, ARowDoesNotSeeItsNeighbours) {
  std::mt19937 random(11);
  std::vector<SampleCase> cases;
  for (int i = 0; i < 16; ++i) cases.push_back(AnyCase(random, 5003));
  const std::vector<SampledRow> all = Check(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(SameBits(std::vector<SampledRow>{all[i]}, Check({cases[i]}))) << "row " << i;
  }
}

// Evenly spaced uniform numbers draw every id as often as its probability says, give or take one.
TEST(SampleCuda, DrawsFollowTheDistribution) {
  constexpr int kDraws = 100;
  const std::vector<float> logits = {0.3f, 2.0f, -1.0f, 1.0f, 2.0f, -30.0f};
  for (const bool truncated : {false, true}) {
    SampleCase c;
    c.logits = logits;
    c.params.temperature = 0.9f;
    if (truncated) c.params.top_k = 4;
    std::vector<double> weights;
    for (const float x : logits) weights.push_back(std::exp(x / 0.9));
    if (truncated) weights[2] = weights[5] = 0.0;
    double total = 0.0;
    for (const double w : weights) total += w;
    std::vector<double> uniforms;
    for (int i = 0; i < kDraws; ++i) uniforms.push_back((i + 0.5) / kDraws);
    std::vector<int> got(logits.size());
    for (const SampledRow& row : RunWith(std::vector<SampleCase>(kDraws, c), uniforms)) ++got.at(row.id);
    for (size_t id = 0; id < got.size(); ++id) {
      EXPECT_NEAR(got[id], kDraws * weights[id] / total, 1.01) << "id " << id;
    }
  }
}

// Uniform numbers as far out as there are: the first and the last id that can be drawn.
TEST(SampleCuda, DrawsStayWithinTheRow) {
  SampleCase c;
  c.logits.assign(5000, -1000.0f);
  c.logits[7] = 1.0f;
  c.logits[4000] = 1.5f;
  c.params.temperature = 1.0f;
  for (const float top_p : {1.0f, 0.99f}) {
    c.params.top_p = top_p;
    const std::vector<SampledRow> rows = RunWith({c, c}, {0.0, std::nextafter(1.0, 0.0)});
    EXPECT_EQ(rows[0].id, top_p < 1.0f ? 4000 : 7);
    EXPECT_EQ(rows[1].id, top_p < 1.0f ? 7 : 4000);
  }
}

// A number on the boundary of two ids draws the second.
TEST(SampleCuda, BoundariesBelongToTheNextId) {
  SampleCase c;
  c.logits = {1.0f, 1.0f, 1.0f, 1.0f};
  c.params.temperature = 1.0f;
  for (const uint32_t top_k : {0u, 3u}) {
    c.params.top_k = top_k;
    const double part = top_k == 0 ? 0.25 : 1.0 / 3;
    const std::vector<SampledRow> rows = RunWith({c, c, c}, {0.0, part, part * (1 - 1e-9)});
    EXPECT_EQ(rows[0].id, 0);
    EXPECT_EQ(rows[1].id, 1);
    EXPECT_EQ(rows[2].id, 0);
  }
}

TEST(SampleCuda, NoRows) { SampleRowsCuda({}, 0, nullptr); }

}  // namespace
}  // namespace normserve::kernels
