// SPDX-License-Identifier: Apache-2.0
// WidenWeightCuda and EmbedRowsCuda of quantised weights in the emulator, bit for bit: every e4m3 code, both
// formats, odd widths, alignment.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "emu/weight_bytes.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

constexpr WeightFormat kQuantised[] = {WeightFormat::kInt8, WeightFormat::kFloat8};

template <typename T>
std::vector<T> Widened(WeightBytes& w, Layout layout) {
  Matrix<T> out(1, w.outputs * w.inputs, layout);
  WidenRows args;
  args.format = w.format;
  args.out_type = kRowTypeOf<T>;
  args.weight = w.row(0);
  args.weight_stride = w.stride;
  args.out = out.row(0);
  args.inputs = w.inputs;
  WidenWeightCuda(args, w.outputs, nullptr);
  out.ExpectBandIntact("out");
  return out.Values();
}

// Of every code at every place in a pack, aligned or not.
TEST(WidenCuda, EveryFloat8Code) {
  for (const int64_t shift : {0, 1}) {
    WeightBytes w(WeightFormat::kFloat8, 16, 256, 1, 0, 16 * shift + shift * 4);
    const float one = 1.0f;
    for (int64_t o = 0; o < 16; ++o) {
      for (int64_t i = 0; i < 256; ++i) w.row(o)[i] = static_cast<unsigned char>(i + o);
      std::memcpy(w.row(o) + 256, &one, sizeof(one));
    }
    const std::vector<float> got = Widened<float>(w, Layout::kContiguous);
    for (size_t at = 0; at < got.size(); ++at) {
      const int code = static_cast<int>((at % 256 + at / 256) % 256);
      if (code % 128 == 127) {
        EXPECT_TRUE(std::isnan(got[at])) << code;
      } else {
        EXPECT_EQ(got[at], Float8(code)) << code;
        EXPECT_EQ(std::signbit(got[at]), code >= 128) << code;
      }
    }
  }
}

// And in a product: NaN makes its output NaN, and no other.
TEST(WidenCuda, Float8NaNInAProduct) {
  WeightBytes w(WeightFormat::kFloat8, 3, 48, 2);
  w.row(1)[17] = 0xff;
  const std::vector<float> x(48, 1.0f);
  std::vector<float> y(3);
  CudaLinearRows args;
  args.format = w.format;
  args.weight = w.row(0);
  args.weight_stride = w.stride;
  args.x = x.data();
  args.y = y.data();
  args.inputs = 48;
  args.outputs = 3;
  LinearRowsCuda(args, 1, nullptr);
  EXPECT_FALSE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_FALSE(std::isnan(y[2]));
}

template <typename T>
void CheckWiden() {
  for (const WeightFormat format : kQuantised) {
    for (const int64_t inputs : {1, 7, 64, 100, 2056}) {
      WeightBytes w(format, 3, inputs, 3), shifted(format, 3, inputs, 3, 4, 4);
      std::vector<T> want;
      for (const double v : w.values) want.push_back(T(static_cast<float>(v)));
      for (const Layout layout : {Layout::kContiguous, Layout::kOffsetByOne}) {
        EXPECT_TRUE(SameBits(Widened<T>(w, layout), want)) << static_cast<int>(format) << " " << inputs;
        EXPECT_TRUE(SameBits(Widened<T>(shifted, layout), want)) << static_cast<int>(format) << " " << inputs;
      }
    }
  }
}
TEST(WidenCuda, IsScaleTimesValue) {
  CheckWiden<float>();
  CheckWiden<__nv_bfloat16>();
}

template <typename T>
void CheckEmbed(WeightFormat format, int64_t width, bool with_positions) {
  WeightBytes table(format, 11, width, 4);
  const std::vector<float> added = TestFloats(7 * width, 0.0f, 1.0f, 5);
  const std::vector<int32_t> ids = {10, 0, 3, 3}, positions = {0, 6, 2, 5};
  Matrix<T> out(4, width, Layout::kStrided);
  EmbedRows args;
  args.table_format = format;
  args.out_type = kRowTypeOf<T>;
  args.table = table.row(0);
  args.ids = ids.data();
  args.scale = 1.7f;
  args.positions_table = with_positions ? added.data() : nullptr;
  args.positions = with_positions ? positions.data() : nullptr;
  args.out = out.row(0);
  args.out_stride = out.stride();
  args.width = width;
  EmbedRowsCuda(args, 4, nullptr);
  out.ExpectBandIntact("out");
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const size_t token = static_cast<size_t>(t);
      float want = 1.7f * static_cast<float>(table.values[static_cast<size_t>(ids[token] * width + i)]);
      if (with_positions) want += added[static_cast<size_t>(positions[token] * width + i)];
      ASSERT_EQ(float(out.row(t)[i]), float(T(want))) << t << " " << i;
    }
  }
}

TEST(WidenCuda, EmbeddingOfAQuantisedTable) {
  for (const WeightFormat format : kQuantised) {
    for (const int64_t width : {1, 33, 576}) {
      CheckEmbed<float>(format, width, false);
      CheckEmbed<__nv_bfloat16>(format, width, true);
      CheckEmbed<__half>(format, width, false);
    }
  }
}

}  // namespace
}  // namespace normserve::kernels
