// SPDX-License-Identifier: Apache-2.0
// AttentionRowsCuda against loops in double, and the law that a row's bits depend on its own
// context alone: not on the batch, the blocks of the cache, or where the splits are merged.
#include <string>

#include "emu/paged_test.h"

namespace normserve::kernels {
namespace {

struct Shape {
  int64_t group = 1, kv_heads = 2, dim = 64, block_size = 16;
};

struct Token {
  size_t sequence;
  int32_t position;
};

// Sequences in a paged cache whose unused slots are NaN, and the queries that attend to them.
template <typename A, typename C>
struct World {
  Shape s;
  Paging paging;
  Banded<C> k_cache, v_cache;
  int64_t width, pad = 5;

  // Keys and values of sequence i are drawn from seed `seeds[i]`, whatever the others are.
  World(const Shape& shape, const std::vector<int64_t>& contexts, std::vector<uint32_t> seeds,
        uint32_t order)
      : s(shape), paging(contexts, shape.block_size, order),
        k_cache(static_cast<size_t>(paging.blocks * s.kv_heads * s.dim * s.block_size)),
        v_cache(k_cache.size()), width((s.group + 2) * s.kv_heads * s.dim) {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const int64_t row = s.kv_heads * s.dim;
      const std::vector<float> x = Normals(static_cast<size_t>(contexts[i] * row * 2), seeds[i]);
      for (int64_t p = 0; p < contexts[i]; ++p) {
        for (int64_t e = 0; e < row; ++e) {
          k_cache.Set(KeyAt(i, p, e / s.dim, e % s.dim), x[(2 * p) * row + e]);
          v_cache.Set(ValueAt(i, p, e / s.dim, e % s.dim), x[(2 * p + 1) * row + e]);
        }
      }
    }
  }
  size_t KeyAt(size_t sequence, int64_t position, int64_t head, int64_t d) const {
    const int64_t slot = paging.Slot(sequence, position), size = s.block_size;
    return ((slot / size * s.kv_heads + head) * s.dim + d) * size + slot % size;
  }
  size_t ValueAt(size_t sequence, int64_t position, int64_t head, int64_t d) const {
    const int64_t slot = paging.Slot(sequence, position), size = s.block_size;
    return ((slot / size * s.kv_heads + head) * size + slot % size) * s.dim + d;
  }
  int64_t Heads() const { return s.group * s.kv_heads; }
  // A token's query hangs on its position only.
  std::vector<A> Query(const Token& t) const {
    std::vector<A> q;
    for (const float v : Normals(static_cast<size_t>(Heads() * s.dim), 1000 + t.position)) {
      q.push_back(FromFloat<A>(v));
    }
    return q;
  }

  // out [tokens, heads * dim]
  std::vector<A> Attend(const std::vector<Token>& tokens, bool scratch = true) const {
    const int64_t n = static_cast<int64_t>(tokens.size()), q_width = Heads() * s.dim;
    Banded<A> qkv(n * (width + pad), 1), out(n * (q_width + pad), 1, 1536.0f);
    std::vector<int32_t> sequence, position;
    int64_t longest = 0;
    for (int64_t t = 0; t < n; ++t) {
      const std::vector<A> q = Query(tokens[t]);
      std::copy(q.begin(), q.end(), qkv.data() + t * (width + pad));
      sequence.push_back(static_cast<int32_t>(tokens[t].sequence));
      position.push_back(tokens[t].position);
      longest = std::max<int64_t>(longest, tokens[t].position + 1);
    }
    AttentionRows rows;
    rows.type = kRowTypeOf<A>;
    rows.cache_type = kRowTypeOf<C>;
    rows.qkv = qkv.data();
    rows.qkv_stride = width + pad;
    rows.k_cache = k_cache.data();
    rows.v_cache = v_cache.data();
    rows.block_tables = paging.tables.data();
    rows.block_tables_stride = paging.stride;
    rows.token_sequence = sequence.data();
    rows.positions = position.data();
    rows.scale = 0.25f;
    rows.heads = Heads();
    rows.kv_heads = s.kv_heads;
    rows.head_dim = s.dim;
    rows.block_size = s.block_size;
    rows.out = out.data();
    rows.out_stride = q_width + pad;
    Banded<float> memory(static_cast<size_t>(AttentionScratchFloats(rows, n, longest)));
    AttentionRowsCuda(rows, n, longest, scratch && memory.size() > 0 ? memory.data() : nullptr,
                      nullptr);
    std::vector<A> result;
    for (int64_t t = 0; t < n; ++t) {
      const A* row = out.data() + t * (q_width + pad);
      result.insert(result.end(), row, row + q_width);
      for (int64_t i = 0; i < pad; ++i) EXPECT_EQ(ToFloat(row[q_width + i]), 1536.0f);
    }
    return result;
  }

  // One head of one token in double.
  std::vector<double> Want(const Token& t, int64_t head) const {
    const std::vector<A> q = Query(t);
    const int64_t kv = head / s.group;
    std::vector<double> weights, out(static_cast<size_t>(s.dim));
    double top = -1e300, sum = 0.0;
    for (int64_t p = 0; p <= t.position; ++p) {
      double score = 0.0;
      for (int64_t d = 0; d < s.dim; ++d) {
        score += 0.25 * ToFloat(q[head * s.dim + d]) * k_cache[KeyAt(t.sequence, p, kv, d)];
      }
      weights.push_back(score);
      top = std::max(top, score);
    }
    for (double& w : weights) sum += w = std::exp(w - top);
    for (int64_t p = 0; p <= t.position; ++p) {
      for (int64_t d = 0; d < s.dim; ++d) {
        out[d] += weights[p] / sum * v_cache[ValueAt(t.sequence, p, kv, d)];
      }
    }
    return out;
  }
  void ExpectRight(const std::vector<Token>& tokens, bool scratch = true) const {
    const std::vector<A> got = Attend(tokens, scratch);
    const OrderScope scope(true);
    const std::vector<A> reversed = Attend(tokens, scratch);
    EXPECT_TRUE(SameBits(got, reversed)) << "group " << s.group << " dim " << s.dim;
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int64_t h = 0; h < Heads(); ++h) {
        const std::vector<double> want = Want(tokens[t], h);
        for (int64_t d = 0; d < s.dim; ++d) {
          const double value = ToFloat(got[(t * Heads() + h) * s.dim + d]);
          ASSERT_TRUE(Close(value, want[d], 2e-5, kRounding<A>))
              << "group " << s.group << " dim " << s.dim << " context " << tokens[t].position + 1
              << " head " << h << " element " << d << ": " << value << ", want " << want[d];
        }
      }
    }
  }
  // Each token's row is what it is alone, splits merged either way.
  void ExpectSameAlone(const std::vector<Token>& tokens, const std::vector<A>& batch) const {
    const size_t row = batch.size() / tokens.size();
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (const bool scratch : {true, false}) {
        const std::vector<A> alone = Attend({tokens[t]}, scratch);
        ASSERT_TRUE(SameBits(alone.data(), batch.data() + t * row, row)) << "token " << t;
      }
    }
  }
};

const std::vector<int64_t> kContexts = {17, 1100, 1, 512, 15, 513, 16, 511};
const std::vector<uint32_t> kSeeds = {1, 2, 3, 4, 5, 6, 7, 8};

std::vector<Token> LastTokens(const std::vector<int64_t>& contexts) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < contexts.size(); ++i) {
    tokens.push_back({i, static_cast<int32_t>(contexts[i] - 1)});
  }
  return tokens;
}

template <typename P>
class AttentionCuda : public ::testing::Test {};
TYPED_TEST_SUITE(AttentionCuda, AllTypes);

TYPED_TEST(AttentionCuda, AgreesWithDouble) {
  using W = World<typename TypeParam::Act, typename TypeParam::Cache>;
  const Shape shapes[] = {{1, 2, 16, 16},  {3, 2, 40, 32}, {4, 1, 64, 48}, {3, 1, 100, 16},
                          {4, 2, 128, 16}, {1, 1, 7, 16},  {2, 1, 64, 64}};
  for (const Shape& s : shapes) W(s, kContexts, kSeeds, 9).ExpectRight(LastTokens(kContexts));
}

// More heads per kv head than a block takes, and heads so wide that fewer fit.
TYPED_TEST(AttentionCuda, WideGroupsAndHeads) {
  using W = World<typename TypeParam::Act, typename TypeParam::Cache>;
  const Shape shapes[] = {{7, 1, 16, 16}, {12, 1, 16, 32}, {5, 1, 1024, 16}, {2, 1, 300, 16},
                          {1, 2, 1023, 16}, {6, 1, 24, 16}};
  for (const Shape& s : shapes) {
    const W world(s, {530, 20}, {1, 2}, 9);
    world.ExpectRight({{0, 529}, {1, 19}, {1, 7}});
    world.ExpectRight({{0, 529}, {0, 0}}, false);
  }
}

TYPED_TEST(AttentionCuda, ATokenAloneHasTheSameBits) {
  using W = World<typename TypeParam::Act, typename TypeParam::Cache>;
  for (const int64_t group : {1, 3, 4}) {
    const W world({group, 2, 16, 16}, kContexts, kSeeds, 9);
    std::vector<Token> tokens = LastTokens(kContexts);
    for (int32_t p = 500; p < 530; p += 6) tokens.push_back({1, p});  // a chunk of a prompt
    world.ExpectSameAlone(tokens, world.Attend(tokens));
    world.ExpectSameAlone(tokens, world.Attend(tokens, false));
  }
}

TYPED_TEST(AttentionCuda, OtherSequencesAndBlocksChangeNoBit) {
  using W = World<typename TypeParam::Act, typename TypeParam::Cache>;
  using A = typename TypeParam::Act;
  std::vector<A> first;
  for (const int64_t block : {16, 32, 48, 64}) {
    for (const uint32_t order : {1u, 2u}) {
      const W world({3, 2, 40, block}, {520 + 7 * block, 601, 33}, {order, 2, order + 5}, order);
      const std::vector<A> all =
          world.Attend({{2, 32}, {0, static_cast<int32_t>(520 + block)}, {1, 600}, {2, 3}});
      const size_t row = all.size() / 4;
      const std::vector<A> out(all.begin() + 2 * row, all.begin() + 3 * row);
      if (first.empty()) first = out;
      EXPECT_TRUE(SameBits(out.data(), first.data(), row)) << block << " " << order;
    }
  }
}

// So many tokens that four (two) share a block, whose sequences and contexts may differ.
TYPED_TEST(AttentionCuda, NeighboursThatShareABlockChangeNoBit) {
  using A = typename TypeParam::Act;
  using W = World<A, typename TypeParam::Cache>;
  for (const int64_t group : {1, 3}) {
    W world({group, 16, 8, 16}, {80, 40, 520}, {1, 2, 3}, 9);
    std::vector<Token> tokens;
    for (int32_t p = 0; p < 75; ++p) tokens.push_back({0, p});
    for (int32_t p = 513; p < 520; ++p) tokens.push_back({2, p});
    for (int32_t p = 39; p >= 0; p -= 3) tokens.push_back({static_cast<size_t>(p % 2), p});
    while (tokens.size() < 133) tokens.push_back({0, static_cast<int32_t>(tokens.size() % 80)});
    const std::vector<A> clean = world.Attend(tokens);
    {
      const OrderScope scope(true);
      EXPECT_TRUE(SameBits(clean, world.Attend(tokens, false)));
    }
    const std::vector<Token> some(tokens.begin() + 68, tokens.begin() + 90);
    const size_t row = clean.size() / tokens.size();
    world.ExpectSameAlone(some, {clean.begin() + 68 * row, clean.begin() + 90 * row});
    // A value that is not a number reaches the tokens that see it, and none beside them.
    world.v_cache.Set(world.ValueAt(0, 33, 0, 2), std::nanf(""));
    const std::vector<A> poisoned = world.Attend(tokens);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const bool sees = tokens[t].sequence == 0 && tokens[t].position >= 33;
      EXPECT_EQ(std::isnan(ToFloat(poisoned[t * row + 2])), sees) << t;
      EXPECT_TRUE(sees || SameBits(&poisoned[t * row], &clean[t * row], row)) << t;
    }
  }
}

TYPED_TEST(AttentionCuda, ANanKeyReachesItsRowsOnly) {
  using A = typename TypeParam::Act;
  using W = World<A, typename TypeParam::Cache>;
  W world({2, 2, 16, 16}, {600, 37}, {1, 2}, 3);
  const std::vector<Token> tokens = {{1, 36}, {0, 599}, {0, 19}, {0, 20}};
  const std::vector<A> clean = world.Attend(tokens);
  world.k_cache.Set(world.KeyAt(0, 20, 0, 5), std::nanf(""));
  for (const bool scratch : {true, false}) {
    const std::vector<A> poisoned = world.Attend(tokens, scratch);
    for (size_t i = 0; i < clean.size(); ++i) {
      const size_t token = i / 64, head = i % 64 / 16;
      if (token % 2 == 1 && head < 2) {
        EXPECT_TRUE(std::isnan(ToFloat(poisoned[i]))) << i;
      } else {
        EXPECT_TRUE(SameBits(&poisoned[i], &clean[i], 1)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace normserve::kernels
