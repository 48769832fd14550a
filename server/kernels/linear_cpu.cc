// SPDX-License-Identifier: Apache-2.0
// Glue of PackWeight, Linear, Embed and GatherRows on the CPU: argument contracts, packing, threads.
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/device_rows.h"
#include "kernels/large_pages.h"
#include "kernels/linear_rows.h"
#include "kernels/op_args.h"
#include "kernels/simd_target.h"

namespace normserve::kernels {
namespace {

// Rows that one pass over the weights serves: enough that reading the weights costs nothing beside
// the arithmetic, and if there are more, only as many as leave the interleaved inputs in the second-level cache.
constexpr int64_t kLeastRowsPerPass = 48;
constexpr int64_t kPassBytes = int64_t{384} << 10;

// All rows in passes of nearly equal height.
int64_t RowsPerPass(WeightFormat format, int64_t rows, int64_t k) {
  const int64_t most = std::max(kLeastRowsPerPass, kPassBytes / (4 * PackedInputFloats(format, 1, k)));
  const int64_t passes = std::max<int64_t>(1, (rows + most - 1) / most);
  return RoundedUp((rows + passes - 1) / passes, 12);
}

int64_t PanelsOf(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

WeightFormat CheckFormat(int64_t format) {
  TORCH_CHECK(format != static_cast<int64_t>(WeightFormat::kFloat8),
              "format: 4 (float8) has kernels on CUDA only");
  TORCH_CHECK(format >= 0 && format <= static_cast<int64_t>(WeightFormat::kFloat16), "format: ", format,
              ", on this device allowed 0 (float32), 1 (bfloat16), 2 (int8), 3 (int4), 5 (bfloat16 dot) and 6 (float16)");
  if (format == static_cast<int64_t>(WeightFormat::kBFloat16Dot) && !HasBFloat16Dot()) return WeightFormat::kBFloat16;
  return static_cast<WeightFormat>(format);
}

// body(elements, begin, end) over all panels of a weight, with its elements in their own type.
template <class Body>
void ForPanels(const at::Tensor& weight, const Body& body) {
  ForItems(PanelsOf(weight.size(0)), 1, weight.size(1) * kPanel, [&](int64_t begin, int64_t end) {
    switch (weight.scalar_type()) {
      case at::kFloat: return body(weight.const_data_ptr<float>(), begin, end);
      case at::kBFloat16: return body(weight.const_data_ptr<at::BFloat16>(), begin, end);
      default: return body(weight.const_data_ptr<at::Half>(), begin, end);
    }
  });
}

// Where input i of the first output of a panel lies in it: one input after the other, but pairs in bfloat16.
template <typename W>
int64_t PlaceInPanel(const W* /*panels*/, int64_t i) {
  return i * kPanel;
}
int64_t PlaceInPanel(const at::BFloat16* /*panels*/, int64_t i) { return i / 2 * 2 * kPanel + i % 2; }
// From an output to the next.
template <typename W>
constexpr int64_t OutputStep(const W* /*panels*/) {
  return 1;
}
constexpr int64_t OutputStep(const at::BFloat16* /*panels*/) { return 2; }
template <typename W>
constexpr int64_t PanelSize(const W* /*panels*/, int64_t k) {
  return k * kPanel;
}
constexpr int64_t PanelSize(const at::BFloat16* /*panels*/, int64_t k) { return PairsOf(k) * 2 * kPanel; }

template <typename From, typename To>
void PackPanels(const at::Tensor& weight, const From* from, To* panels, int64_t begin, int64_t end) {
  const int64_t n = weight.size(0), k = weight.size(1);
  const int64_t row_stride = weight.stride(0), column_stride = weight.stride(1);
  for (int64_t p = begin; p < end; ++p) {
    To* to = panels + p * PanelSize(panels, k);
    const int64_t lanes = std::min(kPanel, n - p * kPanel);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const From* row = from + (p * kPanel + lane) * row_stride;
      for (int64_t i = 0; i < k; ++i) {
        to[PlaceInPanel(panels, i) + lane * OutputStep(panels)] =
            static_cast<To>(static_cast<float>(row[i * column_stride]));
      }
    }
  }
}

// A panel's weights as [groups * 32, 16] float32 first, then rounded.
template <typename From, class Group>
void QuantisePanels(const at::Tensor& weight, const From* from, Group* panels, int64_t begin,
                    int64_t end) {
  const int64_t n = weight.size(0), k = weight.size(1), groups = GroupsOf(k);
  std::vector<float> block(static_cast<size_t>(groups * kGroup * kPanel));
  for (int64_t p = begin; p < end; ++p) {
    const int64_t lanes = std::min(kPanel, n - p * kPanel);
    if (lanes < kPanel) std::fill(block.begin(), block.end(), 0.0f);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const From* row = from + (p * kPanel + lane) * weight.stride(0);
      for (int64_t i = 0; i < k; ++i) {
        block[static_cast<size_t>(i * kPanel + lane)] = static_cast<float>(row[i * weight.stride(1)]);
      }
    }
    QuantisePanelCpu(block.data(), groups, panels + p * groups);
  }
}

template <class Group>
at::Tensor Quantise(const at::Tensor& weight) {
  at::Tensor panels = ZerosInLargePages(
      {PanelsOf(weight.size(0)), GroupsOf(weight.size(1)), static_cast<int64_t>(sizeof(Group))},
      at::kByte);
  Group* to = reinterpret_cast<Group*>(panels.data_ptr<uint8_t>());
  ForPanels(weight, [&](const auto* from, int64_t begin, int64_t end) {
    QuantisePanels(weight, from, to, begin, end);
  });
  return panels;
}

std::array<int64_t, 3> PanelsShape(int64_t n, int64_t k, at::ScalarType dtype) {
  if (dtype != at::kBFloat16) return {PanelsOf(n), k, kPanel};
  return {PanelsOf(n), PairsOf(k), 2 * kPanel};
}

template <typename To>
at::Tensor PackAs(const at::Tensor& weight, at::ScalarType dtype) {
  at::Tensor panels = ZerosInLargePages(PanelsShape(weight.size(0), weight.size(1), dtype), dtype);
  To* to = panels.data_ptr<To>();
  ForPanels(weight, [&](const auto* from, int64_t begin, int64_t end) {
    PackPanels(weight, from, to, begin, end);
  });
  return panels;
}

at::Tensor PackWeightCpu(const at::Tensor& weight, int64_t format) {
  TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16 ||
                  weight.scalar_type() == at::kHalf,
              "weight: expected float32, bfloat16 or float16, got ", weight.scalar_type());
  switch (CheckFormat(format)) {
    case WeightFormat::kInt8: return Quantise<Int8Group>(weight);
    case WeightFormat::kInt4: return Quantise<Int4Group>(weight);
    case WeightFormat::kBFloat16:
    case WeightFormat::kBFloat16Dot: return PackAs<at::BFloat16>(weight, at::kBFloat16);
    case WeightFormat::kFloat16: return PackAs<at::Half>(weight, at::kHalf);
    default: return PackAs<float>(weight, at::kFloat);
  }
}

// The packed tensor of a [n, k] weight, as PackWeightCpu makes it.
void CheckPanels(const at::Tensor& panels, WeightFormat format, int64_t n, int64_t k) {
  at::ScalarType dtype = format == WeightFormat::kFloat32   ? at::kFloat
                         : format == WeightFormat::kFloat16 ? at::kHalf
                                                            : at::kBFloat16;
  std::array<int64_t, 3> shape = PanelsShape(n, k, dtype);
  if (IsQuantised(format)) {
    dtype = at::kByte;
    shape = {PanelsOf(n), GroupsOf(k),
             static_cast<int64_t>(format == WeightFormat::kInt8 ? sizeof(Int8Group) : sizeof(Int4Group))};
  }
  TORCH_CHECK(panels.sizes() == at::IntArrayRef(shape) && panels.is_contiguous(), "panels: expected packed ",
              at::IntArrayRef(shape), ", got ", panels.sizes());
  TORCH_CHECK(panels.scalar_type() == dtype, "panels: expected ", dtype, ", got ",
              panels.scalar_type());
}

// What interleaves a tile's inputs and what multiplies a panel, for one format.
struct Kernel {
  void (*pack)(const LinearRows&, int64_t begin, int64_t end, float* packed);
  void (*run)(const LinearRows&, const float* packed, int64_t begin, int64_t end);
  int64_t panels_at_once;
};

Kernel KernelFor(const LinearRows& a) {
  if (IsQuantised(a.format) && HasVnni()) return {VnniInputsCpu, VnniPanelsCpu, VnniPanelsAtOnce(a.rows)};
  if (IsQuantised(a.format)) return {QuantiseInputsCpu, QuantisedPanelsCpu, QuantisedPanelsAtOnce(a.rows)};
  if (a.format == WeightFormat::kBFloat16Dot) {
    return {PackBFloat16InputsCpu, BFloat16PanelsCpu, BFloat16PanelsAtOnce(a.rows)};
  }
  if (a.format == WeightFormat::kFloat16) return {PackInputsCpu, Float16PanelsCpu, PanelsAtOnce(a.rows, a.narrow)};
  return {PackInputsCpu, LinearPanelsCpu, PanelsAtOnce(a.rows, a.narrow)};
}

// One pass: at most RowsPerPass rows, their inputs interleaved in `packed`.
void LinearPass(const LinearRows& rows, float* packed) {
  const Kernel kernel = KernelFor(rows);
  // A single float32 row is its own interleaving.
  const bool as_is = rows.rows == 1 && rows.x_type == RowType::kFloat32 && kernel.pack == PackInputsCpu;
  if (!as_is) {
    const RowTiles tiles = TilesOf(rows.rows);
    const int64_t tile_cost = rows.rows / tiles.count * rows.k;
    ForItems(tiles.count, 1, tile_cost,
             [&](int64_t begin, int64_t end) { kernel.pack(rows, begin, end, packed); });
  }
  const float* inputs = as_is ? static_cast<const float*>(rows.x) : packed;
  ForItems(PanelsOf(rows.n), kernel.panels_at_once, rows.k * kPanel / 4 * rows.rows,
           [&](int64_t begin, int64_t end) { kernel.run(rows, inputs, begin, end); });
}

struct EmbedRows {
  const int32_t* ids;
  const int32_t* positions;  // null: none
  const float* positions_table;
  float scale;
  int64_t width;
};

float WidenScale(uint16_t bits) {
  return static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
}

// Input i of output `id`, in each format.
template <typename W>
float WeightAt(const W* panels, int64_t width, int64_t id, int64_t i) {
  const W* panel = panels + id / kPanel * PanelSize(panels, width);
  return static_cast<float>(panel[PlaceInPanel(panels, i) + id % kPanel * OutputStep(panels)]);
}
float WeightAt(const Int8Group* panels, int64_t width, int64_t id, int64_t i) {
  const Int8Group& group = panels[id / kPanel * GroupsOf(width) + i / kGroup];
  const int64_t lane = id % kPanel;
  return WidenScale(group.scale[lane]) * static_cast<float>(group.Value(lane, i % kGroup));
}
float WeightAt(const Int4Group* panels, int64_t width, int64_t id, int64_t i) {
  const Int4Group& group = panels[id / kPanel * GroupsOf(width) + i / kGroup];
  const int64_t lane = id % kPanel;
  return WidenScale(group.scale[lane]) * static_cast<float>(group.Value(lane, i % kGroup)) +
         WidenScale(group.least[lane]);
}

template <typename W, typename T>
void EmbedRange(const EmbedRows& a, const W* panels, T* out, int64_t out_stride, int64_t begin,
                int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* add = a.positions ? a.positions_table + a.positions[t] * a.width : nullptr;
    T* to = out + t * out_stride;
    for (int64_t i = 0; i < a.width; ++i) {
      float v = a.scale * WeightAt(panels, a.width, a.ids[t], i);
      if (add != nullptr) v += add[i];
      to[i] = static_cast<T>(v);
    }
  }
}

void EmbedCpu(const at::Tensor& ids, const at::Tensor& panels, int64_t format, int64_t table_rows,
              double scale, const MaybeTensor& positions, const MaybeTensor& positions_table,
              const at::Tensor& out) {
  const WeightFormat w_format = CheckFormat(format);
  const int64_t tokens = out.size(0);
  EmbedRows a{};
  a.width = out.size(-1);
  CheckPanels(panels, w_format, table_rows, a.width);
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
    switch (w_format) {
      case WeightFormat::kFloat32: return run(panels.const_data_ptr<float>());
      case WeightFormat::kFloat16: return run(panels.const_data_ptr<at::Half>());
      case WeightFormat::kBFloat16:
      case WeightFormat::kBFloat16Dot: return run(panels.const_data_ptr<at::BFloat16>());
      case WeightFormat::kInt8: return run(static_cast<const Int8Group*>(panels.const_data_ptr()));
      case WeightFormat::kInt4: return run(static_cast<const Int4Group*>(panels.const_data_ptr()));
      case WeightFormat::kFloat8: return;  // refused by CheckFormat
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

void RunLinear(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
               int64_t /*rows_per_product*/, const MaybeTensor& bias, const at::Tensor& y) {
  LinearRows rows;
  rows.format = CheckFormat(format);
  rows.n = out_features;
  rows.k = x.size(-1);
  TORCH_CHECK(rows.k > 0, "x: expected [tokens, K > 0], got ", x.sizes());
  CheckPanels(panels, rows.format, rows.n, rows.k);
  rows.x_type = CheckActivations("x", x, x.size(0), rows.k);
  rows.y_type = CheckActivations("y", y, x.size(0), rows.n);
  rows.panels = panels.const_data_ptr();
  rows.x_stride = x.stride(0);
  rows.y_stride = y.stride(0);
  rows.narrow = SplitsWideVectors();
  if (bias.has_value()) rows.bias = CheckFloats("bias", *bias, rows.n);
  const int64_t total = x.size(0);
  const int64_t pass = RowsPerPass(rows.format, total, rows.k);
  const size_t scratch = static_cast<size_t>(PackedInputFloats(rows.format, std::min(total, pass), rows.k));
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

bool RunLinearResidual(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t, const MaybeTensor&,
                       const ResidualRows&) {
  return false;  // nothing to gain: the CPU starts no kernels, and h is in its cache
}

TORCH_LIBRARY_IMPL(normserve, CPU, m) {
  m.impl("pack_weight", PackWeightCpu);
  m.impl("linear", RunLinear);
  m.impl("embed", EmbedCpu);
  m.impl("gather_rows", GatherRowsCpu);
}

}  // namespace normserve::kernels
