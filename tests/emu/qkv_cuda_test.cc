// SPDX-License-Identifier: Apache-2.0
// QkvRowsCuda against loops in double: norms of every grouping, both pairings, strides, slots.
#include <string>

#include "emu/paged_test.h"

namespace normserve::kernels {
namespace {

struct Case {
  int64_t heads = 6, kv_heads = 2, dim = 64, block_size = 16;
  int norm = 1;            // 0 none; 1 the whole projection; 2 a head; 3 half a head; 4 two heads
  bool layer_norm = false;  // variance, beta and tanh instead of the mean square
  int rotary = 1;          // 0 none, 1 half split, 2 interleaved
  int64_t pad = 0, shift = 0;
  std::string Name() const {
    return "dim " + std::to_string(dim) + " heads " + std::to_string(heads) + " norm " +
           std::to_string(norm) + " rotary " + std::to_string(rotary) + " pad " +
           std::to_string(pad) + " shift " + std::to_string(shift);
  }
};

// One call's arguments, with what they point to.
template <typename T, typename C>
struct Call {
  Case c;
  int64_t tokens, width;
  Banded<T> qkv;
  Banded<C> k_cache, v_cache;
  std::vector<float> gamma[3], beta[3], table;
  std::vector<int32_t> positions, slots;
  QkvRows rows;

  static constexpr int64_t kPositions = 64, kBlocks = 5;

  Call(const Case& which, int64_t n)
      : c(which), tokens(n), width((c.heads + 2 * c.kv_heads) * c.dim),
        qkv(static_cast<size_t>(n * (width + c.pad)), static_cast<size_t>(c.shift), 1536.0f),
        k_cache(static_cast<size_t>(kBlocks * c.kv_heads * c.dim * c.block_size)),
        v_cache(k_cache.size(), c.shift) {
    const std::vector<float> x = Normals(static_cast<size_t>(n * width), 11);
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        qkv.Set(t * (width + c.pad) + i, 2.0f * x[t * width + i] + 0.25f);
      }
      positions.push_back(static_cast<int32_t>(t * 29 % kPositions));
      const int64_t slot = (t * 37 + 5) % (kBlocks * c.block_size);
      slots.push_back(t % 4 == 3 ? -1 : static_cast<int32_t>(slot));
    }
    for (int64_t p = 0; p < kPositions; ++p) {
      for (int64_t i = 0; i < c.dim / 2 * 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * (i % (c.dim / 2)) / c.dim);
        table.push_back(static_cast<float>(i < c.dim / 2 ? std::cos(angle) : std::sin(angle)));
      }
    }
    Fill();
  }

  void Fill() {
    rows.type = kRowTypeOf<T>;
    rows.cache_type = kRowTypeOf<C>;
    rows.qkv = qkv.data();
    rows.qkv_stride = width + c.pad;
    for (int part = 0; part < 3 && c.norm != 0; ++part) {
      if (part == 2 && c.norm == 2) continue;  // QK norm
      const size_t n = static_cast<size_t>((part == 0 ? c.heads : c.kv_heads) * c.dim);
      const int64_t groups[] = {0, 0, c.dim, c.dim / 2, 2 * c.dim};
      rows.has_norm[part] = true;
      NormNumbers& numbers = rows.norm[part].numbers;
      numbers.stat = c.layer_norm ? NormStat::kVariance : NormStat::kMeanSquare;
      numbers.eps = 1e-5f;
      numbers.group_width = static_cast<int32_t>(groups[c.norm]);
      gamma[part] = Normals(n, 20 + part);
      rows.norm[part].gamma = gamma[part].data();
      if (!c.layer_norm) continue;
      numbers.centring = NormCentring::kSubtractMean;
      numbers.phi = NormPhi::kTanh;
      beta[part] = Normals(n, 30 + part);
      rows.norm[part].beta = beta[part].data();
    }
    rows.rotary = c.rotary != 0;
    rows.interleaved = c.rotary == 2;
    rows.cos_sin = rows.rotary ? table.data() : nullptr;
    rows.cos_sin_stride = c.dim;
    rows.cos_sin_positions = kPositions;
    rows.positions = positions.data();
    rows.slots = slots.data();
    rows.heads = c.heads;
    rows.kv_heads = c.kv_heads;
    rows.head_dim = c.dim;
    rows.block_size = c.block_size;
    rows.k_cache = k_cache.data();
    rows.v_cache = v_cache.data();
  }
  void Run() { QkvRowsCuda(rows, tokens, nullptr); }
  const T* Row(int64_t t) const { return qkv.data() + t * (width + c.pad); }
};

// N(x) of one part in double.
void Normalise(const RowNorm& norm, std::vector<double>& x) {
  const size_t group = norm.numbers.group_width > 0 ? norm.numbers.group_width : x.size();
  const bool centred = norm.numbers.centring == NormCentring::kSubtractMean;
  for (size_t begin = 0; begin < x.size(); begin += group) {
    double mean = 0.0, square = 0.0;
    for (size_t i = 0; i < group; ++i) mean += x[begin + i] / group;
    for (size_t i = 0; i < group; ++i) {
      const double v = x[begin + i] - (centred ? mean : 0.0);
      square += v * v / group;
    }
    for (size_t i = begin; i < begin + group; ++i) {
      double v = (x[i] - (centred ? mean : 0.0)) / std::sqrt(square + norm.numbers.eps);
      if (norm.numbers.phi == NormPhi::kTanh) v = std::tanh(v);
      if (norm.gamma != nullptr) v *= norm.gamma[i];
      x[i] = norm.beta != nullptr ? v + norm.beta[i] : v;
    }
  }
}

void Rotate(const QkvRows& a, int32_t position, std::vector<double>& x) {
  const int64_t half = a.head_dim / 2;
  const float* cos = a.cos_sin + position * a.cos_sin_stride;
  for (size_t head = 0; head < x.size(); head += a.head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      double& r = x[head + (a.interleaved ? 2 * i : i)];
      double& m = x[head + (a.interleaved ? 2 * i + 1 : i + half)];
      const double turned = r * cos[i] - m * cos[half + i];
      m = m * cos[i] + r * cos[half + i];
      r = turned;
    }
  }
}

template <typename T, typename C>
void CheckToken(const Call<T, C>& before, const Call<T, C>& after, int64_t t) {
  const Case& c = before.c;
  const int64_t slot = before.slots[t], block = slot / c.block_size, offset = slot % c.block_size;
  for (int part = 0; part < 3; ++part) {
    const int64_t heads = part == 0 ? c.heads : c.kv_heads;
    const T* x = before.Row(t) + (part == 0 ? 0 : c.heads + (part - 1) * c.kv_heads) * c.dim;
    std::vector<double> want(x, x + heads * c.dim);
    if (before.rows.has_norm[part]) Normalise(before.rows.norm[part], want);
    if (c.rotary != 0 && part < 2) Rotate(before.rows, before.positions[t], want);
    if (part > 0 && slot < 0) continue;
    const double rounding = part == 0 ? kRounding<T> : kRounding<C>;
    for (int64_t i = 0; i < heads * c.dim; ++i) {
      const int64_t h = i / c.dim, d = i % c.dim, head = block * c.kv_heads + h;
      const double got = part == 0   ? ToFloat(after.Row(t)[i])
                         : part == 1 ? after.k_cache[(head * c.dim + d) * c.block_size + offset]
                                     : after.v_cache[(head * c.block_size + offset) * c.dim + d];
      ASSERT_TRUE(Close(got, want[i], 2e-5, rounding + 2e-6))
          << c.Name() << " token " << t << " part " << part << " element " << i << ": " << got
          << ", want " << want[i];
    }
  }
}

template <typename T, typename C>
void ExpectSame(const Call<T, C>& a, const Call<T, C>& b) {
  EXPECT_TRUE(SameBits(a.qkv.data(), b.qkv.data(), a.qkv.size())) << a.c.Name();
  EXPECT_TRUE(SameBits(a.k_cache.data(), b.k_cache.data(), a.k_cache.size())) << a.c.Name();
  EXPECT_TRUE(SameBits(a.v_cache.data(), b.v_cache.data(), a.v_cache.size())) << a.c.Name();
}

template <typename T, typename C>
void Check(const Case& c) {
  constexpr int64_t kTokens = 6;
  const Call<T, C> before(c, kTokens);
  Call<T, C> after(c, kTokens), reversed(c, kTokens);
  after.Run();
  {
    const OrderScope scope(true);
    reversed.Run();
  }
  ExpectSame(after, reversed);
  int64_t written = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    CheckToken(before, after, t);
    if (::testing::Test::HasFatalFailure()) return;
    written += before.slots[t] < 0 ? 0 : c.kv_heads * c.dim;
    const int64_t q = c.heads * c.dim, rest = before.width + c.pad - q;
    EXPECT_TRUE(SameBits(after.Row(t) + q, before.Row(t) + q, rest)) << c.Name() << ": k, v or pad";
  }
  int64_t k = 0, v = 0;
  for (size_t i = 0; i < after.k_cache.size(); ++i) {
    k += !std::isnan(after.k_cache[i]);
    v += !std::isnan(after.v_cache[i]);
  }
  EXPECT_EQ(k, written) << c.Name();
  EXPECT_EQ(v, written) << c.Name();
}

template <typename P>
class QkvCuda : public ::testing::Test {};
TYPED_TEST_SUITE(QkvCuda, AllTypes);

TYPED_TEST(QkvCuda, AgreesWithDouble) {
  using T = typename TypeParam::Act;
  using C = typename TypeParam::Cache;
  for (const int64_t dim : {16, 40, 64, 100, 128, 6}) {
    for (const int norm : {0, 1, 2, 3, 4}) {
      for (const int rotary : {0, 1, 2}) {
        Case c;
        c.dim = dim;
        c.norm = norm;
        c.rotary = rotary;
        c.layer_norm = rotary == 2;
        Check<T, C>(c);
      }
    }
  }
}

TYPED_TEST(QkvCuda, OddHeadsAndStridesAndBlocks) {
  using T = typename TypeParam::Act;
  using C = typename TypeParam::Cache;
  for (const int64_t dim : {1, 7, 33, 1023}) {
    for (const int norm : {0, 1, 2}) Check<T, C>({2, 1, dim, 16, norm, norm == 2, 0, 0, 0});
  }
  for (const int64_t pad : {0, 8, 13}) {
    for (const int64_t shift : {0, 1, 8}) Check<T, C>({4, 4, 64, 48, 1, false, 1, pad, shift});
  }
}

// Wider than a block's share (several blocks per token), than a warp's groups, than shared memory.
TYPED_TEST(QkvCuda, WideProjections) {
  using T = typename TypeParam::Act;
  using C = typename TypeParam::Cache;
  for (const int norm : {0, 1, 2, 4}) {
    Check<T, C>({36, 4, 128, 16, norm, false, 1, 0, 0});
    Check<T, C>({4, 2, 1024, 16, norm, true, 2, 0, 0});
  }
  Check<T, C>({28, 2, 1024, 16, 1, false, 1, 0, 0});
}

TYPED_TEST(QkvCuda, ATokenAloneHasTheSameBits) {
  using T = typename TypeParam::Act;
  using C = typename TypeParam::Cache;
  for (const int norm : {1, 2}) {
    Case c;
    c.norm = norm;
    Call<T, C> batch(c, 9), alone(c, 9), unaligned(c, 9);
    batch.Run();
    for (int64_t t = 0; t < 9; ++t) {
      QkvRows one = alone.rows;
      one.qkv = alone.qkv.data() + t * one.qkv_stride;
      one.positions += t;
      one.slots += t;
      QkvRowsCuda(one, 1, nullptr);
    }
    ExpectSame(alone, batch);
    // Nor does the path that loads element by element change a bit.
    Banded<T> moved(batch.qkv.size(), 1);
    std::copy_n(unaligned.qkv.data(), moved.size(), moved.data());
    unaligned.rows.qkv = moved.data();
    unaligned.Run();
    EXPECT_TRUE(SameBits(moved.data(), batch.qkv.data(), batch.qkv.size()));
  }
}

TYPED_TEST(QkvCuda, NanStaysInItsRowAndPositionsOutsideTheTableGiveNan) {
  using T = typename TypeParam::Act;
  using C = typename TypeParam::Cache;
  Case c;
  Call<T, C> clean(c, 3), poisoned(c, 3);
  poisoned.qkv.Set(poisoned.width + 3, std::nanf(""));
  poisoned.positions[2] = Call<T, C>::kPositions;
  clean.Run();
  poisoned.Run();
  EXPECT_TRUE(SameBits(poisoned.Row(0), clean.Row(0), clean.width));
  for (int64_t i = 0; i < c.heads * c.dim; ++i) {
    ASSERT_TRUE(std::isnan(ToFloat(poisoned.Row(1)[i])));
    ASSERT_TRUE(std::isnan(ToFloat(poisoned.Row(2)[i])));
  }
}

}  // namespace
}  // namespace normserve::kernels
