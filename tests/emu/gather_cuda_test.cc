// SPDX-License-Identifier: Apache-2.0
// EmbedRowsCuda and GatherRowsCuda, bit for bit against plain loops: types, odd widths and strides.
#include "emu/paged_test.h"

namespace normserve::kernels {
namespace {

template <typename W, typename T>
void CheckEmbed(int64_t width, int64_t pad, size_t shift, bool positions) {
  constexpr int64_t kVocabulary = 11, kPositions = 7;
  Banded<W> table(static_cast<size_t>(kVocabulary * width), shift);
  Banded<float> added(static_cast<size_t>(kPositions * width), shift);
  const std::vector<float> x = Normals(table.size(), 1), y = Normals(added.size(), 2);
  for (size_t i = 0; i < table.size(); ++i) table.Set(i, x[i]);
  for (size_t i = 0; i < added.size(); ++i) added.Set(i, y[i]);
  const std::vector<int32_t> ids = {10, 0, 3, 3, 7}, at = {0, 6, 2, 3, 1};
  Banded<T> out(ids.size() * (width + pad), shift, 1536.0f);
  EmbedRows rows;
  rows.table_type = kRowTypeOf<W>;
  rows.out_type = kRowTypeOf<T>;
  rows.table = table.data();
  rows.ids = ids.data();
  rows.scale = 1.7f;
  rows.positions_table = positions ? added.data() : nullptr;
  rows.positions = positions ? at.data() : nullptr;
  rows.out = out.data();
  rows.out_stride = width + pad;
  rows.width = width;
  EmbedRowsCuda(rows, static_cast<int64_t>(ids.size()), nullptr);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t i = 0; i < width + pad; ++i) {
      float want = 1536.0f;
      if (i < width) {
        want = 1.7f * table[ids[t] * width + i];
        if (positions) want += added[at[t] * width + i];
      }
      ASSERT_EQ(out[t * (width + pad) + i], ToFloat(FromFloat<T>(want)))
          << "width " << width << " token " << t << " element " << i;
    }
  }
}

template <typename W, typename T>
void CheckEmbeds() {
  for (const int64_t width : {1, 8, 33, 576, 2312}) {
    for (const bool positions : {false, true}) {
      CheckEmbed<W, T>(width, 0, 0, positions);
      CheckEmbed<W, T>(width, 8, 0, positions);
      CheckEmbed<W, T>(width, 3, 1, positions);
    }
  }
}

TEST(EmbedCuda, EveryTypeAndWidth) {
  CheckEmbeds<float, float>();
  CheckEmbeds<float, __nv_bfloat16>();
  CheckEmbeds<float, __half>();
  CheckEmbeds<__nv_bfloat16, float>();
  CheckEmbeds<__nv_bfloat16, __nv_bfloat16>();
  CheckEmbeds<__nv_bfloat16, __half>();
  CheckEmbeds<__half, float>();
  CheckEmbeds<__half, __nv_bfloat16>();
  CheckEmbeds<__half, __half>();
}

template <typename T>
void CheckGather(int64_t width, int64_t pad, size_t shift) {
  constexpr int64_t kRows = 9;
  Banded<T> x(static_cast<size_t>(kRows * (width + pad)), shift);
  const std::vector<float> values = Normals(x.size(), 1);
  for (size_t i = 0; i < x.size(); ++i) x.Set(i, i % 7 == 0 ? std::nanf("") : values[i]);
  const std::vector<int32_t> picked = {8, 0, 0, 5};
  Banded<T> out(picked.size() * (width + 2 * pad), shift, 1536.0f);
  GatherArgs args;
  args.type = kRowTypeOf<T>;
  args.x = x.data();
  args.x_stride = width + pad;
  args.rows = picked.data();
  args.out = out.data();
  args.out_stride = width + 2 * pad;
  args.width = width;
  GatherRowsCuda(args, static_cast<int64_t>(picked.size()), nullptr);
  for (size_t r = 0; r < picked.size(); ++r) {
    const T* row = out.data() + r * (width + 2 * pad);
    EXPECT_TRUE(SameBits(row, x.data() + picked[r] * (width + pad), width)) << width;
    for (int64_t i = 0; i < 2 * pad; ++i) EXPECT_EQ(ToFloat(row[width + i]), 1536.0f) << width;
  }
}

TEST(GatherCuda, EveryTypeAndWidth) {
  for (const int64_t width : {1, 8, 33, 576, 2312}) {
    for (const int64_t pad : {0, 8, 3}) {
      for (const size_t shift : {0, 1}) {
        CheckGather<float>(width, pad, shift);
        CheckGather<__nv_bfloat16>(width, pad, shift);
        CheckGather<__half>(width, pad, shift);
      }
    }
  }
}

TEST(GatherCuda, NoRows) {
  GatherRowsCuda({}, 0, nullptr);
  EmbedRowsCuda({}, 0, nullptr);
}

}  // namespace
}  // namespace normserve::kernels
