// SPDX-License-Identifier: Apache-2.0
// Linear, PackWeight, Embed and GatherRows against the double oracle, and the law that a row's bits depend on
// nothing but the row.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/linear_rows.h"
#include "kernels/oracle.h"
#include "kernels/ops.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
// Activations and weights as they are met together, where the SIMD target in use has them.
std::vector<std::pair<at::ScalarType, WeightFormat>> Formats() {
  std::vector<std::pair<at::ScalarType, WeightFormat>> formats = {
      {at::kFloat, WeightFormat::kFloat32},     {at::kFloat, WeightFormat::kBFloat16},
      {at::kBFloat16, WeightFormat::kBFloat16}, {at::kFloat, WeightFormat::kInt8},
      {at::kBFloat16, WeightFormat::kInt8},     {at::kFloat, WeightFormat::kInt4},
      {at::kFloat, WeightFormat::kFloat16},     {at::kBFloat16, WeightFormat::kFloat16}};
  if (HasBFloat16Dot()) {
    for (const at::ScalarType dtype : kTypes) formats.emplace_back(dtype, WeightFormat::kBFloat16Dot);
  }
  return formats;
}

WeightFormat FormatOf(at::ScalarType dtype) {
  if (dtype == at::kHalf) return WeightFormat::kFloat16;
  return dtype == at::kFloat ? WeightFormat::kFloat32 : WeightFormat::kBFloat16;
}

double HalfUlp(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 0x1p-8 * 1.02; }

struct LinearShape {
  int64_t m, n, k;
};

void CheckLinear(const LinearShape& s, at::ScalarType x_type, at::ScalarType w_type,
                 at::ScalarType y_type, bool with_bias, const std::vector<std::string>& targets) {
  const at::Tensor x = at::randn({s.m, s.k}).to(x_type);
  const at::Tensor w = (at::randn({s.n, s.k}) * 0.1).to(w_type);
  const at::Tensor bias = with_bias ? at::randn({s.n}) : at::Tensor();
  const PackedWeight packed = PackWeight(w, FormatOf(w_type));
  const at::Tensor want = LinearOracle(x, w, bias);
  // n terms of size about 0.1 * |x|: float32 chains drift by their length.
  const double abs = 1e-6 * std::sqrt(static_cast<double>(s.k)) + 1e-6;
  for (const std::string& target : targets) {
    const SimdTargetScope scope(target);
    Guarded in(x, Layout::kOffsetByOne), out(s.m, s.n, y_type, Layout::kOffsetByOne);
    Linear(in.view(), packed, bias, out.view());
    const std::string what = target + " " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" +
                             std::to_string(s.k);
    out.ExpectBandIntact(what.c_str());
    ExpectClose(out.view(), want, abs, HalfUlp(y_type), what);
  }
}

TEST(Linear, ImplementationsAgree) {
  at::manual_seed(1);
  const std::vector<std::string> targets = SimdTargets();
  for (const at::ScalarType x_type : kTypes) {
    for (const at::ScalarType w_type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const at::ScalarType y_type : {at::kFloat, x_type}) {
        for (const LinearShape& s : {LinearShape{1, 1, 1}, {1, 130, 33}, {2, 16, 7}, {3, 48, 64},
                                     {7, 100, 100}, {12, 129, 50}, {13, 257, 17}, {25, 40, 64}}) {
          CheckLinear(s, x_type, w_type, y_type, s.m % 2 == 1, targets);
        }
      }
    }
  }
}

// The inputs are rounded, and nothing else.
TEST(Linear, BFloat16DotRoundsItsInputs) {
  if (!HasBFloat16Dot()) GTEST_SKIP() << "this CPU has no AVX512-BF16";
  at::manual_seed(5);
  for (const at::ScalarType x_type : kTypes) {
    for (const LinearShape& s : {LinearShape{1, 1, 1}, {1, 130, 33}, {2, 16, 7}, {3, 48, 64}, {7, 100, 100},
                                 {8, 300, 65}, {12, 129, 50}, {13, 257, 17}, {25, 40, 64}, {97, 33, 31}}) {
      const at::Tensor x = at::randn({s.m, s.k}).to(x_type);
      const at::Tensor w = (at::randn({s.n, s.k}) * 0.1).to(at::kBFloat16);
      const at::Tensor bias = s.m % 2 == 1 ? at::randn({s.n}) : at::Tensor();
      const PackedWeight packed = PackWeight(w, WeightFormat::kBFloat16Dot);
      Guarded in(x, Layout::kOffsetByOne), out(s.m, s.n, at::kFloat, Layout::kOffsetByOne);
      Linear(in.view(), packed, bias, out.view());
      out.ExpectBandIntact("bfloat16 dot");
      ExpectClose(out.view(), LinearOracle(x.to(at::kBFloat16), w, bias),
                  1e-6 * std::sqrt(static_cast<double>(s.k)) + 1e-6, HalfUlp(at::kFloat),
                  std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k));
    }
  }
}

// Where it has no kernel, it is the exact format.
TEST(Linear, BFloat16DotIsBFloat16ElsewhereToTheLastBit) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({20, 77}), w = at::randn({50, 77});
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    if (HasBFloat16Dot()) continue;
    at::Tensor y[2] = {at::empty({20, 50}), at::empty({20, 50})};
    Linear(x, PackWeight(w, WeightFormat::kBFloat16), {}, y[0]);
    Linear(x, PackWeight(w, WeightFormat::kBFloat16Dot), {}, y[1]);
    EXPECT_TRUE(SameBits(y[0], y[1])) << target;
  }
}

// Chunked prefill, batching and preemption rely on it: one row alone, among others at any place, on
// any number of threads.
TEST(Linear, SameBitsForAnyRowCountAndThreadCount) {
  at::manual_seed(2);
  const int64_t n = 200, k = 300;
  const at::Tensor bias = at::randn({n});
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const auto& [dtype, format] : Formats()) {
      const at::Tensor x = at::randn({230, k}).to(dtype);
      const PackedWeight w = PackWeight(at::randn({n, k}), format);
      at::Tensor want = at::empty({230, n}, dtype);
      for (int64_t r = 0; r < 230; ++r) {
        at::Tensor one = want.slice(0, r, r + 1);
        Linear(x.slice(0, r, r + 1), w, bias, one);
      }
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const ScopedPool pool_scope(&pool);
        for (const int64_t rows : {1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 95, 96, 97, 230}) {
          const int64_t first = 230 - rows;
          at::Tensor y = at::empty({rows, n}, dtype);
          Linear(x.slice(0, first), w, bias, y);
          EXPECT_TRUE(SameBits(y, want.slice(0, first))) << target << " " << rows << " " << threads;
        }
      }
    }
  }
}

// More rows than one pass over the weights takes, in any format.
TEST(Linear, PassesOfRowsChangeNoBit) {
  at::manual_seed(8);
  const int64_t n = 40, k = 2048, rows = 230;
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const auto& [dtype, format] : Formats()) {
      const at::Tensor x = at::randn({rows, k}).to(dtype);
      const PackedWeight w = PackWeight(at::randn({n, k}), format);
      at::Tensor all = at::empty({rows, n}, dtype), one = at::empty({1, n}, dtype);
      Linear(x, w, {}, all);
      for (const int64_t row : {0, 80, 95, 96, 100, 191, 192, 229}) {
        Linear(x.slice(0, row, row + 1), w, {}, one);
        EXPECT_TRUE(SameBits(one, all.slice(0, row, row + 1))) << target << " " << row;
      }
    }
  }
}

// Which processors take the narrow path is not known here: both are called by hand. With a bias not all outputs of
// the last panel exist.
void CheckNarrow(WeightFormat format, LinearExit exit, bool with_bias) {
  SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << " exit " << static_cast<int>(exit));
  for (int64_t rows = 1; rows <= 20; ++rows) {
    const int64_t n = with_bias && exit != LinearExit::kGate ? 41 : 96, k = 77;
    const at::Tensor x = at::randn({rows, k}), bias = at::randn({n});
    const PackedWeight packed = PackWeight(at::randn({n, k}), format);
    at::Tensor y[2];
    for (const bool narrow : {false, true}) {
      at::Tensor& out = y[narrow ? 1 : 0] = at::full({rows, n}, 7.0f);
      LinearRows args;
      args.format = format;
      args.x = x.const_data_ptr();
      args.panels = packed.panels.const_data_ptr();
      args.bias = with_bias ? bias.const_data_ptr<float>() : nullptr;
      args.exit = exit;
      args.y = out.data_ptr();
      args.x_stride = k;
      args.y_stride = n;
      args.rows = rows;
      args.n = n;
      args.k = k;
      args.narrow = narrow;
      at::Tensor inputs = at::empty({PackedInputFloats(format, rows, k)});
      PackInputsCpu(args, 0, TilesOf(rows).count * kTileParts, inputs.data_ptr<float>());
      const auto run = format == WeightFormat::kFloat16 ? Float16PanelsCpu : LinearPanelsCpu;
      run(args, inputs.const_data_ptr<float>(), 0, (n + kPanel - 1) / kPanel);
    }
    EXPECT_TRUE(at::equal(y[0], y[1])) << rows << " rows";
  }
}

TEST(Linear, NarrowVectorsGiveTheSameBits) {
  at::manual_seed(4);
  for (const WeightFormat format : {WeightFormat::kFloat32, WeightFormat::kBFloat16, WeightFormat::kFloat16}) {
    for (const LinearExit exit : {LinearExit::kStore, LinearExit::kAdd, LinearExit::kGate}) {
      for (const bool bias : {false, true}) CheckNarrow(format, exit, bias);
    }
  }
}

TEST(Linear, NanStaysInItsRow) {
  for (const auto& [dtype, format] : Formats()) {
    for (const float value : {NAN, INFINITY}) {
      at::Tensor x = at::randn({5, 40}), y = at::empty({5, 30});
      x[2][7] = value;
      Linear(x.to(dtype), PackWeight(at::randn({30, 40}), format), {}, y);
      EXPECT_EQ(y.isfinite().logical_not().sum().item<int64_t>(), 30);
      EXPECT_TRUE(y[2].isfinite().logical_not().all().item<bool>());
    }
  }
}

TEST(PackWeight, TakesAnyStridesAndDtypes) {
  const at::Tensor w = at::randn({50, 37});
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType to : kTypes) {
      const at::Tensor source = w.to(from);
      const at::Tensor rounded = source.to(at::kFloat).to(to);
      // float32: [panels, inputs, outputs]; bfloat16: [panels, pairs, outputs of two inputs].
      const at::Tensor want =
          to == at::kFloat ? at::constant_pad_nd(rounded, {0, 0, 0, 14}).view({4, 16, 37}).transpose(1, 2)
                           : at::constant_pad_nd(rounded, {0, 1, 0, 14}).view({4, 16, 19, 2}).transpose(1, 2)
                                 .reshape({4, 19, 32});
      const PackedWeight rows = PackWeight(source, FormatOf(to));
      const PackedWeight columns = PackWeight(source.t().contiguous().t(), FormatOf(to));
      EXPECT_TRUE(SameBits(rows.panels, want));
      EXPECT_TRUE(SameBits(columns.panels, rows.panels));
      EXPECT_EQ(rows.out_features, 50);
      EXPECT_EQ(rows.in_features, 37);
    }
  }
}

TEST(Linear, Float16HasItsOddNumbersOnEveryTarget) {
  const at::Tensor w = at::tensor({INFINITY, -INFINITY, NAN, 65504.0f, 0x1p-24f, -0x1p-14f}).view({6, 1}).to(at::kHalf);
  const PackedWeight packed = PackWeight(w, WeightFormat::kFloat16);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    at::Tensor y = at::zeros({1, 6});
    Linear(at::ones({1, 1}), packed, {}, y);
    const float* got = y.const_data_ptr<float>();
    EXPECT_EQ(got[0], INFINITY) << target;
    EXPECT_EQ(got[1], -INFINITY) << target;
    EXPECT_TRUE(std::isnan(got[2])) << target;
    EXPECT_EQ(got[3], 65504.0f) << target;
    EXPECT_EQ(got[4], 0x1p-24f) << target;
    EXPECT_EQ(got[5], -0x1p-14f) << target;
  }
}

TEST(Embed, ReadsFloat16) {
  const at::Tensor w = at::randn({50, 40}), ids = at::tensor({0, 49, 16}, at::kInt);
  at::Tensor out = at::zeros({3, 40});
  Embed(ids, PackWeight(w, WeightFormat::kFloat16), 1.0f, {}, {}, out);
  EXPECT_TRUE(SameBits(out, w.to(at::kHalf).to(at::kFloat).index_select(0, ids)));
}

TEST(Embed, GathersScalesAndAddsPositions) {
  const at::Tensor w = at::randn({50, 40}), table = at::randn({9, 40});
  const at::Tensor ids = at::tensor({0, 49, 16, 15, 16}, at::kInt);
  const at::Tensor positions = at::tensor({0, 8, 3, 3, 1}, at::kInt);
  for (const at::ScalarType dtype : kTypes) {
    const PackedWeight packed = PackWeight(w, FormatOf(dtype));
    const at::Tensor rows = w.to(dtype).to(at::kFloat).index_select(0, ids);
    Guarded out(5, 40, dtype, Layout::kOffsetByOne);
    Embed(ids, packed, 1.0f, {}, {}, out.view());
    EXPECT_TRUE(SameBits(out.view(), rows.to(dtype)));
    Embed(ids, packed, 2.5f, positions, table, out.view());
    EXPECT_TRUE(SameBits(out.view(), (rows * 2.5f + table.index_select(0, positions)).to(dtype)));
    out.ExpectBandIntact("embed");
    EXPECT_THROW(Embed(ids + 1, packed, 1.0f, {}, {}, out.view()), c10::Error);
    EXPECT_THROW(Embed(ids, packed, 1.0f, positions + 1, table, out.view()), c10::Error);
  }
}

TEST(GatherRows, CopiesRows) {
  const at::Tensor rows = at::tensor({4, 0, 4}, at::kInt);
  for (const at::ScalarType dtype : kTypes) {
    Guarded x(at::randn({5, 33}).to(dtype), Layout::kStrided), out(3, 33, dtype, Layout::kStrided);
    GatherRows(x.view(), rows, out.view());
    EXPECT_TRUE(SameBits(out.view(), x.view().index_select(0, rows)));
    out.ExpectBandIntact("gather");
    EXPECT_THROW(GatherRows(x.view(), rows + 1, out.view()), c10::Error);
  }
}

}  // namespace
}  // namespace normserve::kernels
