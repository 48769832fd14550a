// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace normserve::engine {
namespace {

using ::testing::ElementsAre;

std::vector<float> RandomRow(size_t n, uint64_t seed, float spread = 4.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

RowTask TaskOf(const SamplingParams& params) {
  RowTask task;
  task.sampling = &params;
  return task;
}

uint32_t Choose(const std::vector<float>& row, const SamplingParams& params) {
  return Sampler().Decide(row, TaskOf(params)).token.id;
}

// The documented distribution, slowly: a full sort, in double.
std::map<uint32_t, double> Oracle(std::vector<float> row, const SamplingParams& p) {
  for (const auto& [id, bias] : p.logit_bias) row[id] += bias;
  std::vector<uint32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0u);
  std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
  if (p.top_k > 0 && p.top_k < ids.size()) ids.resize(p.top_k);
  std::vector<double> weights;
  double total = 0;
  for (uint32_t id : ids) {
    weights.push_back(std::exp((static_cast<double>(row[id]) - row[ids[0]]) / p.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  for (double mass = 0; kept < ids.size() && mass < p.top_p * total;) mass += weights[kept++];
  while (kept > 1 && weights[kept - 1] < p.min_p) --kept;
  total = std::accumulate(weights.begin(), weights.begin() + kept, 0.0);
  std::map<uint32_t, double> out;
  for (size_t i = 0; i < kept; ++i) out[ids[i]] = weights[i] / total;
  return out;
}

TEST(UniformAtTest, IsTheSameEverywhere) {
  EXPECT_EQ(UniformAt(0, 0), UniformAt(0, 0));
  // Pinned: recorded streams must survive a rewrite.
  EXPECT_DOUBLE_EQ(UniformAt(42, 0), 0.80753973287128333);
  EXPECT_DOUBLE_EQ(UniformAt(42, 1), 0.48794174790802047);
  EXPECT_DOUBLE_EQ(UniformAt(0xFFFFFFFFFFFFFFFFu, 1000), 0.20581690516267714);
}

TEST(UniformAtTest, IsUniformOverSeedsAndPositions) {
  for (bool by_seed : {false, true}) {
    constexpr int kDraws = 100000;
    std::vector<int> buckets(100, 0);
    double sum_of_products = 0, previous = 0.5;
    for (int i = 0; i < kDraws; ++i) {
      const double u = by_seed ? UniformAt(i, 3) : UniformAt(7, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++buckets[static_cast<int>(u * 100)];
      sum_of_products += (u - 0.5) * (previous - 0.5);
      previous = u;
    }
    double chi2 = 0;
    for (int n : buckets) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi2, 170.0);  // 99 degrees of freedom: p < 1e-5
    EXPECT_LT(std::abs(sum_of_products / kDraws), 0.002);
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIdOfEquals) {
  EXPECT_EQ(Choose({1, 3, 2, 3}, SamplingParams()), 1u);
  EXPECT_EQ(Choose({-5}, SamplingParams()), 0u);
}

TEST(SamplerTest, AnyNanOrInfMakesTheRowNonFinite) {
  const SamplingParams greedy;
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (size_t n : {1u, 7u, 64u, 1000u}) {
      for (size_t at : {size_t{0}, n / 2, n - 1}) {
        std::vector<float> row = RandomRow(n, 1);
        row[at] = bad;
        EXPECT_FALSE(Sampler().Decide(row, TaskOf(greedy)).finite);
        EXPECT_FALSE(Sampler().Decide(row, RowTask()).finite);
      }
    }
  }
  EXPECT_TRUE(Sampler().Decide(RandomRow(1000, 1), TaskOf(greedy)).finite);
}

TEST(SamplerTest, LogProbsAreThoseOfTheRawRow) {
  const std::vector<float> row = RandomRow(777, 5);
  SamplingParams params;
  params.temperature = 2.0f;
  params.logit_bias = {{700, 100.0f}};
  RowTask task = TaskOf(params);
  task.logprob = true;
  task.top_logprobs = 777;
  const TokenOutput token = Sampler().Decide(row, task).token;
  EXPECT_EQ(token.id, 700u);
  double sum = 0;
  for (float x : row) sum += std::exp(static_cast<double>(x));
  EXPECT_NEAR(token.logprob, row[700] - std::log(sum), 1e-5);
  ASSERT_EQ(token.top_ids.size(), 777u);
  for (size_t i = 0; i < 777; ++i) {
    EXPECT_NEAR(token.top_logprobs[i], row[token.top_ids[i]] - std::log(sum), 1e-5);
    if (i > 0) {
      EXPECT_GE(token.top_logprobs[i - 1], token.top_logprobs[i]);
    }
  }
  task.top_logprobs = 5;
  const TokenOutput few = Sampler().Decide(row, task).token;
  EXPECT_EQ(few.top_ids, std::vector<uint32_t>(token.top_ids.begin(), token.top_ids.begin() + 5));
}

TEST(SamplerTest, EqualAlternativesAreInOrderOfId) {
  const SamplingParams greedy;
  RowTask task = TaskOf(greedy);
  task.top_logprobs = 3;
  EXPECT_THAT(Sampler().Decide({std::vector<float>{1, 2, 2, 2, 1}}, task).token.top_ids,
              ElementsAre(1, 2, 3));
}

TEST(SamplerTest, ScoringTellsTheArgmax) {
  RowTask task;
  task.target = 2;
  EXPECT_TRUE(Sampler().Decide(std::vector<float>{0, 1, 3}, task).token.is_argmax);
  EXPECT_FALSE(Sampler().Decide(std::vector<float>{0, 3, 3}, task).token.is_argmax);
}

TEST(SamplerTest, DrawsFollowTheDocumentedDistribution) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    SamplingParams p;
    p.seed = seed;
    p.temperature = 0.3f + 0.1f * (random() % 15);
    p.top_k = random() % 3 == 0 ? 1 + random() % 300 : 0;
    p.top_p = random() % 2 ? 0.05f + 0.9f * (random() % 100) / 100.0f : 1.0f;
    p.min_p = random() % 3 == 0 ? 0.2f * (random() % 100) / 100.0f : 0.0f;
    if (seed % 4 == 0) p.logit_bias = {{3, 2.0f}, {9, -50.0f}};
    const std::vector<float> row = RandomRow(2 + random() % 500, seed, seed % 2 ? 3.0f : 0.5f);
    if (row.size() <= 9) p.logit_bias.clear();
    const std::map<uint32_t, double> expected = Oracle(row, p);
    constexpr int kDraws = 4000;
    std::map<uint32_t, int> got;
    Sampler sampler;
    const std::vector<uint32_t> generated(kDraws, 0);
    for (int i = 0; i < kDraws; ++i) {
      RowTask task = TaskOf(p);
      task.generated = absl::MakeConstSpan(generated).subspan(0, i);
      ++got[sampler.Decide(row, task).token.id];
    }
    double chi2 = 0, rest = 0;
    int degrees = 0, rest_got = 0;
    for (const auto& [id, n] : got) {
      ASSERT_TRUE(expected.count(id)) << "seed " << seed << " drew " << id;
    }
    for (const auto& [id, probability] : expected) {
      const double want = probability * kDraws;
      const int have = got.count(id) ? got[id] : 0;
      if (want < 5) {
        rest += want;
        rest_got += have;
        continue;
      }
      chi2 += (have - want) * (have - want) / want;
      ++degrees;
    }
    if (rest >= 5) chi2 += (rest_got - rest) * (rest_got - rest) / rest;
    EXPECT_LT(chi2, degrees + 6 * std::sqrt(2.0 * degrees + 1) + 10) << "seed " << seed;
    ++checked;
  }
  EXPECT_EQ(checked, 40);
}

// What may be drawn at all, on a vocabulary of full size, from peaked to nearly flat.
TEST(SamplerTest, TruncationKeepsExactlyTheNucleusOfALargeVocabulary) {
  for (float spread : {0.01f, 1.0f, 6.0f}) {
    const std::vector<float> row = RandomRow(128256, 3, spread);
    SamplingParams p;
    p.temperature = 1.0f;
    p.top_p = 0.9f;
    const std::map<uint32_t, double> expected = Oracle(row, p);
    Sampler sampler;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      p.seed = seed;
      EXPECT_TRUE(expected.count(sampler.Decide(row, TaskOf(p)).token.id));
    }
  }
}

TEST(SamplerTest, TopKAndTopPOfOneTokenAreGreedyWithTiesByLowestId) {
  SamplingParams p;
  p.temperature = 1.0f;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    p.seed = seed;
    p.top_k = 1;
    p.top_p = 1.0f;
    EXPECT_EQ(Choose({1, 5, 5, 5}, p), 1u);
    p.top_k = 0;
    p.top_p = 1e-6f;
    EXPECT_EQ(Choose({1, 5, 5, 5}, p), 1u);
    p.top_p = 1.0f;
    p.min_p = 1.0f;
    EXPECT_NE(Choose({1, 5, 5, 5}, p), 0u);
    p.min_p = 0.0f;
  }
}

TEST(SamplerTest, PenaltiesActOnTheTokensTheyName) {
  SamplingParams p;
  const std::vector<uint32_t> prompt = {0, 0}, generated = {1, 1, 2};
  RowTask task = TaskOf(p);
  task.prompt = prompt;
  task.generated = generated;
  Sampler sampler;
  const auto choose = [&](std::vector<float> row) { return sampler.Decide(row, task).token.id; };
  p.repetition_penalty = 2.0f;  // prompt and output, once each; negative logits grow
  EXPECT_EQ(choose({3.9f, 3.8f, 3.7f, 1.9f}), 0u);
  EXPECT_EQ(choose({3.9f, 3.8f, 3.7f, 2.0f}), 3u);
  EXPECT_EQ(choose({-1.0f, -1.0f, -1.0f, -1.5f}), 3u);
  p.repetition_penalty = 1.0f;
  p.presence_penalty = 1.0f;  // output only, once
  EXPECT_EQ(choose({2.0f, 2.5f, 2.9f, 0.0f}), 0u);
  EXPECT_EQ(choose({1.4f, 2.5f, 2.0f, 0.0f}), 1u);
  p.presence_penalty = 0.0f;
  p.frequency_penalty = 1.0f;  // output only, per occurrence
  EXPECT_EQ(choose({0.0f, 3.0f, 2.1f, 0.0f}), 2u);
  p.frequency_penalty = 0.0f;
  EXPECT_EQ(choose({3.0f, 4.0f, 1.0f, 0.0f}), 1u);  // nothing is left of the earlier penalties
}

TEST(SamplerTest, ExtremeLogitsAndParametersStayDefined) {
  const float huge = std::numeric_limits<float>::max();
  for (float temperature : {0.0f, 1e-30f, 1e-5f, 1e-4f, 1.0f, 1e30f}) {
    for (float penalty : {0.001f, 1.0f, 10.0f}) {
      SamplingParams p;
      p.temperature = temperature;
      p.repetition_penalty = penalty;
      p.top_p = 0.9f;
      p.logit_bias = {{1, 100.0f}};
      const std::vector<uint32_t> prompt = {0, 1, 2, 3};
      for (uint64_t seed = 0; seed < 10; ++seed) {
        p.seed = seed;
        RowTask task = TaskOf(p);
        task.prompt = prompt;
        const RowResult r = Sampler().Decide(std::vector<float>{huge, -huge, 0, 1e-40f}, task);
        EXPECT_TRUE(r.finite);
        EXPECT_LT(r.token.id, 4u);
        if (temperature <= 1.0f) {
          EXPECT_EQ(r.token.id, 0u);
        }
      }
    }
  }
}

TEST(SamplerTest, BannedIdsAreNeverDrawn) {
  const std::vector<uint32_t> banned = {0, 2, 5000};
  for (float temperature : {0.0f, 1.0f, 1e30f}) {
    SamplingParams p;
    p.temperature = temperature;
    p.logit_bias = {{0, 100.0f}};
    for (uint64_t seed = 0; seed < 50; ++seed) {
      p.seed = seed;
      RowTask task = TaskOf(p);
      task.banned = banned;
      const uint32_t id = Sampler().Decide(std::vector<float>{9, 1, 8, 1.5f}, task).token.id;
      EXPECT_TRUE(id == 1 || id == 3);
      if (temperature == 0) {
        EXPECT_EQ(id, 3u);
      }
    }
  }
}

// Scratch that is left over from other rows must not show.
TEST(SamplerTest, AUsedSamplerDecidesLikeAFreshOne) {
  Sampler used;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<float> row = RandomRow(1 + random() % 400, seed);
    SamplingParams p;
    p.seed = seed;
    p.temperature = random() % 3 * 0.7f;
    p.top_k = random() % 2 ? random() % 50 : 0;
    p.top_p = random() % 2 ? 0.7f : 1.0f;
    p.repetition_penalty = random() % 2 ? 1.3f : 1.0f;
    p.frequency_penalty = random() % 2 ? 0.5f : 0.0f;
    const std::vector<uint32_t> tokens(random() % 5, static_cast<uint32_t>(random() % row.size()));
    RowTask task = TaskOf(p);
    task.generated = tokens;
    task.top_logprobs = random() % 4;
    const TokenOutput a = used.Decide(row, task).token;
    const TokenOutput b = Sampler().Decide(row, task).token;
    EXPECT_EQ(a.id, b.id);
    EXPECT_EQ(a.logprob, b.logprob);
    EXPECT_EQ(a.top_ids, b.top_ids);
  }
}

}  // namespace
}  // namespace normserve::engine
