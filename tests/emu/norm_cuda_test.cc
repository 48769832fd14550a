// SPDX-License-Identifier: Apache-2.0
// The CUDA norm kernels in the emulator: against loops in double, on every width and layout; the
// same bits in either order of threads, for any number of rows and any alignment; fused equals
// unfused.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "emu/emu_rows.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kWidths[] = {1, 3, 31, 32, 33, 576, 577, 2048, 4096, 16384};

template <typename T>
struct NormResult {
  std::vector<T> y;         // [rows, width]
  std::vector<float> stat;  // [rows]
};

template <typename T>
NormResult<T> RunNorm(const std::vector<T>& x, int64_t width, const RowNorm& norm, Layout layout,
                      bool reversed) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  Matrix<T> in(rows, width, layout, x), out(rows, width, layout);
  NormResult<T> result;
  for (int64_t r = 0; r < rows; ++r) result.stat.push_back(0.5f + static_cast<float>(r % 5));
  NormRows args;
  args.type = kRowTypeOf<T>;
  args.x = in.row(0);
  args.x_stride = in.stride();
  args.y = out.row(0);
  args.y_stride = out.stride();
  args.row_stat = result.stat.data();
  args.width = width;
  args.norm = norm;
  const OrderScope order(reversed);
  NormRowsCuda(args, rows, nullptr);
  out.ExpectBandIntact("y");
  in.ExpectBandIntact("x");
  EXPECT_TRUE(SameBits(in.Values(), x)) << "x changed";
  result.y = out.Values();
  return result;
}

template <typename T>
bool SameResult(const NormResult<T>& a, const NormResult<T>& b) {
  return SameBits(a.y, b.y) && SameBits(a.stat, b.stat);
}

// The statistic a norm of the whole row leaves; carried ones stay, groups leave none.
template <typename T>
void ExpectRight(const NormResult<T>& got, const std::vector<T>& x, int64_t width,
                 const RowNorm& norm, const std::string& what) {
  for (size_t r = 0; r < got.stat.size(); ++r) {
    const double before = 0.5 + static_cast<double>(r % 5);
    double stat = before;
    const size_t at = r * static_cast<size_t>(width);
    const std::vector<double> want = NormLoop(x.data() + at, width, norm, &stat);
    ExpectClose(got.y.data() + at, want, 1e-6, kRoundOff<T>, what);
    const bool whole = norm.numbers.group_width == 0;
    EXPECT_NEAR(got.stat[r], whole ? stat : before, 1e-30 + 1e-6 * stat) << what << ": row_stat";
  }
}

template <typename T>
class NormCuda : public ::testing::Test {};
TYPED_TEST_SUITE(NormCuda, RowTypes);

TYPED_TEST(NormCuda, EveryNormWidthAndLayout) {
  using T = TypeParam;
  for (const int64_t width : kWidths) {
    const NormFamily family(width);
    const std::vector<T> x = TestRows<T>(width > 4096 ? 3 : 5, width, 1);
    for (const NormCase& c : family.cases()) {
      const std::string what = c.name + ", width " + std::to_string(width);
      const NormResult<T> first = RunNorm(x, width, c.norm, Layout::kContiguous, false);
      ExpectRight(first, x, width, c.norm, what);
      for (const Layout layout : kLayouts) {
        if (layout == Layout::kContiguous) continue;
        const bool reversed = layout != Layout::kStrided;
        EXPECT_TRUE(SameResult(first, RunNorm(x, width, c.norm, layout, reversed)))
            << what << ": depends on the layout " << static_cast<int>(layout)
            << (reversed ? " or on the order of threads" : "");
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TYPED_TEST(NormCuda, ARowDoesNotSeeItsNeighbours) {
  using T = TypeParam;
  for (const int64_t width : kWidths) {
    const NormFamily family(width);
    const std::vector<T> x = TestRows<T>(width > 4096 ? 7 : 64, width, 2);
    for (const char* name : {"rms", "bhyt_second", "layernorm"}) {
      const RowNorm& norm = family.Named(name);
      const NormResult<T> all = RunNorm(x, width, norm, Layout::kStrided, true);
      for (const int64_t rows : {1, 3}) {
        const std::vector<T> few(x.begin(), x.begin() + rows * width);
        const NormResult<T> alone = RunNorm(few, width, norm, Layout::kPadded, false);
        const std::vector<T> same(all.y.begin(), all.y.begin() + rows * width);
        EXPECT_TRUE(SameBits(alone.y, same)) << name << ", width " << width << ", rows " << rows;
      }
    }
  }
}

TYPED_TEST(NormCuda, InPlace) {
  using T = TypeParam;
  for (const int64_t width : {33, 2048}) {
    const NormFamily family(width);
    const std::vector<T> x = TestRows<T>(3, width, 3);
    for (const NormCase& c : family.cases()) {
      Matrix<T> rows(3, width, Layout::kPadded, x);
      std::vector<float> stat = {0.5f, 1.5f, 2.5f};
      const NormRows args = {kRowTypeOf<T>, rows.row(0), rows.stride(), rows.row(0),
                             rows.stride(), stat.data(), width,         c.norm};
      NormRowsCuda(args, 3, nullptr);
      rows.ExpectBandIntact(c.name);
      EXPECT_TRUE(SameBits(rows.Values(), RunNorm(x, width, c.norm, Layout::kPadded, false).y))
          << c.name << ", width " << width;
    }
  }
}

TYPED_TEST(NormCuda, NoRowsAndNoStatistic) {
  using T = TypeParam;
  NormRows args;
  args.type = kRowTypeOf<T>;
  args.width = 8;
  NormRowsCuda(args, 0, nullptr);
  Matrix<T> x(2, 8, Layout::kContiguous, TestRows<T>(2, 8, 4)), y(2, 8, Layout::kContiguous);
  args.x = x.row(0);
  args.y = y.row(0);
  args.x_stride = args.y_stride = 8;
  args.norm.numbers.stat = NormStat::kMeanSquare;
  NormRowsCuda(args, 2, nullptr);  // row_stat is null
  double stat = 0;
  ExpectClose(y.row(1), NormLoop(x.row(1), 8, args.norm, &stat), 1e-6, kRoundOff<T>, "no row_stat");
}

// h, delta and y of one ResidualNorm.
template <typename T>
struct ResidualRun {
  Matrix<T> h, delta, y;
  std::vector<float> stat;

  ResidualRun(const std::vector<T>& h_rows, const std::vector<T>& delta_rows, int64_t width,
              Layout layout)
      : h(static_cast<int64_t>(h_rows.size()) / width, width, layout, h_rows),
        delta(static_cast<int64_t>(h_rows.size()) / width, width, layout, delta_rows),
        y(static_cast<int64_t>(h_rows.size()) / width, width, layout),
        stat(h_rows.size() / static_cast<size_t>(width), 0.75f) {}

  ResidualRows Args(int64_t width, const RowNorm* out, const RowNorm* next) {
    ResidualRows args;
    args.type = kRowTypeOf<T>;
    args.h = h.row(0);
    args.h_stride = h.stride();
    args.delta = delta.row(0);
    args.delta_stride = delta.stride();
    args.width = width;
    args.has_out = out != nullptr;
    if (out != nullptr) args.out = *out;
    args.has_next = next != nullptr;
    if (next == nullptr) return args;
    args.next = *next;
    args.y = y.row(0);
    args.y_stride = y.stride();
    args.row_stat = stat.data();
    return args;
  }
  void ExpectBandsIntact(const std::string& what) const {
    h.ExpectBandIntact(what + ": h");
    delta.ExpectBandIntact(what + ": delta");
    y.ExpectBandIntact(what + ": y");
  }
};

// One pass in either order, and the two ops one after the other on another layout: the same bits.
template <typename T>
void CheckResidual(int64_t width, const RowNorm* out, const RowNorm* next,
                   const std::string& what) {
  const int64_t rows = 3;
  const std::vector<T> h = TestRows<T>(rows, width, 5), delta = TestRows<T>(rows, width, 6);
  ResidualRun<T> fused(h, delta, width, Layout::kContiguous);
  ResidualRowsCuda(fused.Args(width, out, next), rows, nullptr);
  fused.ExpectBandsIntact(what);
  ResidualRun<T> reversed(h, delta, width, Layout::kPadded);
  {
    const OrderScope order(true);
    ResidualRowsCuda(reversed.Args(width, out, next), rows, nullptr);
  }
  reversed.ExpectBandsIntact(what);
  ResidualRun<T> split(h, delta, width, Layout::kOffsetByOne);
  const ResidualRows args = split.Args(width, out, next);
  ResidualRows add = args;
  add.has_next = false;
  ResidualRowsCuda(add, rows, nullptr);
  const NormRows norm = {args.type,     args.h,     args.h_stride, args.y, args.y_stride,
                         args.row_stat, args.width, args.next};
  if (next != nullptr) NormRowsCuda(norm, rows, nullptr);
  split.ExpectBandsIntact(what);
  for (ResidualRun<T>* other : {&reversed, &split}) {
    const char* which = other == &split ? ": fused is not unfused" : ": depends on layout or thread order";
    EXPECT_TRUE(SameBits(fused.h.Values(), other->h.Values())) << what << which << ", h";
    EXPECT_TRUE(SameBits(fused.y.Values(), other->y.Values())) << what << which << ", y";
    EXPECT_TRUE(SameBits(fused.stat, other->stat)) << what << which << ", row_stat";
  }
  for (int64_t r = 0; r < rows; ++r) {
    double stat = 0.0, next_stat = 0.75;
    const T* h_row = h.data() + r * width;
    const T* delta_row = delta.data() + r * width;
    std::vector<double> sum(delta_row, delta_row + width);
    if (out != nullptr) sum = NormLoop(delta_row, width, *out, &stat);
    for (int64_t i = 0; i < width; ++i) sum[static_cast<size_t>(i)] += float(h_row[i]);
    ExpectClose(fused.h.row(r), sum, 2e-6, kRoundOff<T>, what + ": h");
    if (next == nullptr) continue;
    ExpectClose(fused.y.row(r), NormLoop(fused.h.row(r), width, *next, &next_stat), 1e-6,
                kRoundOff<T>, what + ": y of the rounded h");
  }
}

TYPED_TEST(NormCuda, ResidualOfEveryPairOfNorms) {
  for (const int64_t width : {33, 96}) {
    const NormFamily family(width);
    std::vector<const NormCase*> norms = {nullptr};
    for (const NormCase& c : family.cases()) norms.push_back(&c);
    for (const NormCase* out : norms) {
      if (out != nullptr && out->norm.numbers.stat == NormStat::kCarried) continue;
      for (const NormCase* next : norms) {
        const std::string what = (out != nullptr ? out->name : "nothing") + " then " +
                                 (next != nullptr ? next->name : "nothing") + ", width " +
                                 std::to_string(width);
        CheckResidual<TypeParam>(width, out != nullptr ? &out->norm : nullptr,
                                 next != nullptr ? &next->norm : nullptr, what);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(NormCuda, ResidualOfEveryWidth) {
  for (const int64_t width : kWidths) {
    const NormFamily family(width);
    const std::string at = ", width " + std::to_string(width);
    const RowNorm &rms = family.Named("rms"), &layer_norm = family.Named("layernorm");
    CheckResidual<TypeParam>(width, nullptr, &rms, "rms" + at);
    CheckResidual<TypeParam>(width, &layer_norm, nullptr, "post layernorm" + at);
    CheckResidual<TypeParam>(width, &layer_norm, &rms, "layernorm then rms" + at);
    CheckResidual<TypeParam>(width, nullptr, &family.Named("bhyt_second"), "carried" + at);
  }
}

}  // namespace
}  // namespace normserve::kernels
