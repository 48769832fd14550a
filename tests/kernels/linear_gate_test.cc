// SPDX-License-Identifier: Apache-2.0
// LinearGate is Linear and then Activate, bit for bit, whether or not the device makes it in one pass.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/guarded.h"
#include "kernels/linear_rows.h"
#include "kernels/ops.h"
#include "kernels/oracle.h"
#include "kernels/read_ahead.h"
#include "kernels/simd_target_scope.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

// Activations and weights.
std::vector<std::pair<at::ScalarType, WeightFormat>> Formats() {
  std::vector<std::pair<at::ScalarType, WeightFormat>> formats = {
      {at::kFloat, WeightFormat::kFloat32},      {at::kFloat, WeightFormat::kBFloat16},
      {at::kFloat, WeightFormat::kBFloat16Dot},  {at::kFloat, WeightFormat::kFloat16},
      {at::kFloat, WeightFormat::kInt8},         {at::kBFloat16, WeightFormat::kBFloat16},
      {at::kBFloat16, WeightFormat::kBFloat16Dot}};
  if (!AnotherDevice()) formats.emplace_back(at::kFloat, WeightFormat::kInt4);
  return formats;
}

void Check(int64_t rows, int64_t width, bool with_bias, at::ScalarType type, WeightFormat format,
           const std::string& what, int64_t inputs = 77) {
  const at::Tensor w = at::randn({2 * width, inputs}) * 0.3, x = at::randn({rows, inputs}).to(type);
  const at::Tensor bias = with_bias ? at::randn({2 * width}) : at::Tensor();
  at::Tensor gate_up = at::empty({rows, 2 * width}, type), scratch = at::empty({rows, 2 * width}, type);
  at::Tensor want = at::empty({rows, width}, type);
  Guarded got(rows, width, type, Layout::kOffsetByOne);
  Linear(x, PackWeight(w, format), bias, gate_up);
  Activate(gate_up, Activation::kSiluGate, std::nullopt, std::nullopt, want);
  LinearGate(x, PackWeight(w, format, WeightUse::kGate), bias, scratch, got.view());
  got.ExpectBandIntact("linear_gate");
  EXPECT_TRUE(SameBits(got.view().contiguous(), want))
      << what << " " << rows << "x" << width << " " << type << " " << static_cast<int>(format) << " bias " << with_bias;
}

// Widths with an odd number of panels, with one, and those that no panel divides.
TEST(LinearGate, IsItsTwoParts) {
  at::manual_seed(11);
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const auto& [type, format] : Formats()) {
      for (const int64_t rows : {1, 2, 3, 5, 6, 8, 11, 12, 13, 26, 40}) {
        for (const int64_t width : {8, 24, 64, 5, 20}) Check(rows, width, rows % 2 == 1, type, format, target);
      }
    }
  }
}

TEST(LinearGate, OnAnyNumberOfThreads) {
  at::manual_seed(12);
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    const ScopedPool scope(&pool);
    for (const auto& [type, format] : Formats()) {
      const std::string what = std::to_string(threads) + " threads";
      for (const int64_t rows : {1, 7, 200}) Check(rows, 136, rows == 7, type, format, what);
      Check(130, 24, false, type, format, what, 2048);  // in several passes over the weights
    }
  }
}

// Linear layers of many rows ask for what a ReadAhead has, all of it, and give the same bits.
TEST(LinearGate, AsksAheadAndStaysTheSame) {
  if (AnotherDevice()) GTEST_SKIP() << "asking ahead is the CPU's";
  at::manual_seed(13);
  const at::Tensor cache = at::randn({64, 1024});
  const std::vector<int32_t> table = {1, 2, 5}, sequence = {0}, positions = {47};
  for (const std::string& target : SimdTargets()) {
    const SimdTargetScope scope(target);
    for (const auto& [type, format] : Formats()) {
      ReadAhead ahead(size_t{1} << 20);
      ahead.Plan({table.data(), 3, 1, 3, sequence.data(), positions.data(), 1, 64, 16, 4096});
      ahead.Aim(cache.const_data_ptr(), cache.const_data_ptr<float>() + 32 * 1024);
      const ScopedReadAhead asks(&ahead);
      Check(96, 128, false, type, format, target);
      // Vectors of 128 bits ask for their own weights alone.
      const bool narrow = SplitsWideVectors() && target == "AVX2" && !IsQuantised(format);
      EXPECT_EQ(ahead.Take(0, 64, 1).bytes > 0, narrow) << target;
    }
  }
}

TEST(LinearGate, RefusesWhatDoesNotFit) {
  const at::Tensor w = at::randn({32, 8});
  const PackedWeight gate = PackWeight(w, WeightFormat::kFloat32, WeightUse::kGate);
  const PackedWeight plain = PackWeight(w, WeightFormat::kFloat32);
  const at::Tensor x = at::randn({2, 8});
  at::Tensor gate_up = at::empty({2, 32}), y = at::empty({2, 16}), narrow = at::empty({2, 15});
  EXPECT_THROW(LinearGate(x, plain, {}, gate_up, y), c10::Error) << "packed for Linear";
  EXPECT_THROW(Linear(x, gate, {}, gate_up), c10::Error) << "packed for LinearGate";
  EXPECT_THROW(LinearGate(x, gate, {}, gate_up, narrow), c10::Error);
  EXPECT_THROW(LinearGate(x, gate, {}, y, y), c10::Error) << "gate_up is too narrow";
  at::Tensor square = at::randn({2, 8}), room = at::empty({2, 16});
  const PackedWeight small = PackWeight(at::randn({16, 8}), WeightFormat::kFloat32, WeightUse::kGate);
  EXPECT_THROW(LinearGate(square, small, {}, room, square), c10::Error) << "y is x";
  LinearGate(x, gate, {}, gate_up, y);
}

}  // namespace
}  // namespace normserve::kernels
