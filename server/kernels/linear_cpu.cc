// SPDX-License-Identifier: Apache-2.0
// Glue of PackWeight, Linear, Embed and GatherRows on the CPU: argument contracts, packing, threads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/linear_rows.h"
#include "kernels/op_args.h"

namespace normserve::kernels {
namespace {

// Rows that one pass over the weights serves: enough that reading the weights costs nothing beside
// the arithmetic, few enough that the interleaved inputs stay in the cache.
constexpr int64_t kRowsPerPass = 96;

template <typename From, typename To>
void PackPanels(const at::Tensor& weight, To* panels, int64_t begin, int64_t end) {
  const int64_t n = weight.size(0), k = weight.size(1);
  const int64_t row_stride = weight.stride(0), column_stride = weight.stride(1);
  const From* from = weight.const_data_ptr<From>();
  for (int64_t p = begin; p < end; ++p) {
    To* to = panels + p * k * kPanel;
    const int64_t lanes = std::min(kPanel, n - p * kPanel);
    if (lanes < kPanel) std::fill(to, to + k * kPanel, To(0.0f));
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const From* row = from + (p * kPanel + lane) * row_stride;
      for (int64_t i = 0; i < k; ++i) {
        to[i * kPanel + lane] = static_cast<To>(static_cast<float>(row[i * column_stride]));
      }
    }
  }
}

template <typename To>
void PackAs(const at::Tensor& weight, To* panels) {
  const int64_t count = (weight.size(0) + kPanel - 1) / kPanel;
  ForItems(count, 1, weight.size(1) * kPanel, [&](int64_t begin, int64_t end) {
    switch (weight.scalar_type()) {
      case at::kFloat: return PackPanels<float, To>(weight, panels, begin, end);
      case at::kBFloat16: return PackPanels<at::BFloat16, To>(weight, panels, begin, end);
      default: return PackPanels<at::Half, To>(weight, panels, begin, end);
    }
  });
}

at::Tensor PackWeightCpu(const at::Tensor& weight, at::ScalarType dtype) {
  TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16 ||
                  weight.scalar_type() == at::kHalf,
              "weight: expected float32, bfloat16 or float16, got ", weight.scalar_type());
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16,
              "dtype: expected float32 or bfloat16, got ", dtype);
  const int64_t count = (weight.size(0) + kPanel - 1) / kPanel;
  at::Tensor panels = at::empty({count, weight.size(1), kPanel}, weight.options().dtype(dtype));
  if (dtype == at::kFloat) {
    PackAs(weight, panels.data_ptr<float>());
  } else {
    PackAs(weight, panels.data_ptr<at::BFloat16>());
  }
  return panels;
}

RowType CheckPanels(const at::Tensor& panels, int64_t n) {
  TORCH_CHECK(panels.dim() == 3 && panels.is_contiguous() && panels.size(2) == kPanel &&
                  panels.size(0) == (n + kPanel - 1) / kPanel,
              "panels: expected packed [ceil(", n, " / 16), K, 16], got ", panels.sizes());
  TORCH_CHECK(panels.scalar_type() == at::kFloat || panels.scalar_type() == at::kBFloat16,
              "panels: expected float32 or bfloat16, got ", panels.scalar_type());
  return panels.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16;
}

// One pass: at most kRowsPerPass rows, their inputs interleaved in `packed`.
void LinearPass(const LinearRows& rows, float* packed) {
  // A single float32 row is its own interleaving.
  const bool as_is = rows.rows == 1 && rows.x_type == RowType::kFloat32;
  if (!as_is) {
    const RowTiles tiles = TilesOf(rows.rows);
    const int64_t tile_cost = rows.rows / tiles.count * rows.k;
    ForItems(tiles.count, 1, tile_cost,
             [&](int64_t begin, int64_t end) { PackInputsCpu(rows, begin, end, packed); });
  }
  const float* inputs = as_is ? static_cast<const float*>(rows.x) : packed;
  const int64_t panels = (rows.n + kPanel - 1) / kPanel;
  ForItems(panels, PanelsAtOnce(rows.rows), rows.k * kPanel / 4 * rows.rows,
           [&](int64_t begin, int64_t end) { LinearPanelsCpu(rows, inputs, begin, end); });
}

void LinearCpu(const at::Tensor& x, const at::Tensor& panels, int64_t out_features,
               const MaybeTensor& bias, const at::Tensor& y) {
  LinearRows rows;
  rows.w_type = CheckPanels(panels, out_features);
  rows.n = out_features;
  rows.k = panels.size(1);
  rows.x_type = CheckActivations("x", x, x.size(0), rows.k);
  rows.y_type = CheckActivations("y", y, x.size(0), rows.n);
  rows.panels = panels.const_data_ptr();
  rows.x_stride = x.stride(0);
  rows.y_stride = y.stride(0);
  if (bias.has_value()) rows.bias = CheckFloats("bias", *bias, rows.n);
  const int64_t total = x.size(0);
  const int64_t pass = std::min(total, kRowsPerPass);
  const size_t scratch = static_cast<size_t>(pass * rows.k);
  std::unique_ptr<float[]> own;
  float* packed = nullptr;
  if (ThreadPool* pool = CurrentPool()) {
    packed = pool->Scratch(scratch);
  } else {
    own.reset(new float[scratch]);
    packed = own.get();
  }
  const int64_t x_row = x.element_size() * rows.x_stride, y_row = y.element_size() * rows.y_stride;
  for (int64_t first = 0; first < total; first += pass) {
    rows.rows = std::min(pass, total - first);
    rows.x = static_cast<const char*>(x.const_data_ptr()) + first * x_row;
    rows.y = static_cast<char*>(y.data_ptr()) + first * y_row;
    LinearPass(rows, packed);
  }
}

struct EmbedRows {
  const int32_t* ids;
  const int32_t* positions;  // null: none
  const float* positions_table;
  float scale;
  int64_t width;
};

template <typename W, typename T>
void EmbedRange(const EmbedRows& a, const W* panels, T* out, int64_t out_stride, int64_t begin,
                int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t id = a.ids[t];
    const W* from = panels + id / kPanel * a.width * kPanel + id % kPanel;
    const float* add = a.positions ? a.positions_table + a.positions[t] * a.width : nullptr;
    T* to = out + t * out_stride;
    for (int64_t i = 0; i < a.width; ++i) {
      float v = a.scale * static_cast<float>(from[i * kPanel]);
      if (add != nullptr) v += add[i];
      to[i] = static_cast<T>(v);
    }
  }
}

void EmbedCpu(const at::Tensor& ids, const at::Tensor& panels, int64_t table_rows, double scale,
              const MaybeTensor& positions, const MaybeTensor& positions_table,
              const at::Tensor& out) {
  const RowType w_type = CheckPanels(panels, table_rows);
  const int64_t tokens = out.size(0);
  EmbedRows a{};
  a.width = panels.size(1);
  const RowType y_type = CheckActivations("out", out, tokens, a.width);
  a.ids = CheckInts("ids", ids, tokens);
  a.scale = static_cast<float>(scale);
  TORCH_CHECK(positions.has_value() || !positions_table.has_value(),
              "positions: needed by positions_table");
  if (positions_table.has_value()) {
    a.positions = CheckInts("positions", *positions, tokens);
    a.positions_table = CheckFloats("positions_table", *positions_table, positions_table->numel());
  }
  for (int64_t t = 0; t < tokens; ++t) {
    TORCH_CHECK(a.ids[t] >= 0 && a.ids[t] < table_rows, "ids[", t, "]: ", a.ids[t],
                ", allowed 0..", table_rows - 1);
    if (a.positions == nullptr) continue;
    TORCH_CHECK(a.positions[t] >= 0 && a.positions[t] < positions_table->size(0), "positions[", t,
                "]: ", a.positions[t], ", allowed 0..", positions_table->size(0) - 1);
  }
  ForItems(tokens, 1, a.width * 4, [&](int64_t begin, int64_t end) {
    const auto run = [&](const auto* weights) {
      if (y_type == RowType::kFloat32) {
        EmbedRange(a, weights, out.data_ptr<float>(), out.stride(0), begin, end);
      } else {
        EmbedRange(a, weights, out.data_ptr<at::BFloat16>(), out.stride(0), begin, end);
      }
    };
    if (w_type == RowType::kFloat32) {
      run(panels.const_data_ptr<float>());
    } else {
      run(panels.const_data_ptr<at::BFloat16>());
    }
  });
}

void GatherRowsCpu(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& out) {
  const int64_t count = out.size(0), width = x.size(1);
  CheckActivations("x", x, x.size(0), width);
  CheckActivations("out", out, count, width);
  TORCH_CHECK(x.scalar_type() == out.scalar_type(), "out: expected the dtype of x");
  const int32_t* index = CheckInts("rows", rows, count);
  const size_t bytes = static_cast<size_t>(width * x.element_size());
  for (int64_t r = 0; r < count; ++r) {
    TORCH_CHECK(index[r] >= 0 && index[r] < x.size(0), "rows[", r, "]: ", index[r],
                ", allowed 0..", x.size(0) - 1);
    std::memcpy(static_cast<char*>(out.data_ptr()) + r * out.stride(0) * out.element_size(),
                static_cast<const char*>(x.const_data_ptr()) +
                    index[r] * x.stride(0) * x.element_size(),
                bytes);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(normserve, CPU, m) {
  m.impl("pack_weight", PackWeightCpu);
  m.impl("linear", LinearCpu);
  m.impl("embed", EmbedCpu);
  m.impl("gather_rows", GatherRowsCpu);
}

}  // namespace normserve::kernels
