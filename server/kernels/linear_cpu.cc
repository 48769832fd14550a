// SPDX-License-Identifier: Apache-2.0
// Glue of Linear and its fused forms, Embed and GatherRows on the CPU: argument contracts, passes, threads.
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "kernels/device_rows.h"
#include "kernels/linear_panels.h"
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
    // Twice that of an element of other kernels: what it reads another thread wrote.
    const int64_t part_cost = 2 * rows.rows / tiles.count * rows.k / kTileParts;
    ForItems(tiles.count * kTileParts, 1, part_cost,
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
  const WeightFormat w_format = CheckCpuFormat(format);
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
      case WeightFormat::kFloat8: return;  // refused by CheckCpuFormat
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

// All but y.
LinearRows ArgsOf(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
                  const MaybeTensor& bias) {
  LinearRows rows;
  rows.format = CheckCpuFormat(format);
  rows.n = out_features;
  rows.k = x.size(-1);
  TORCH_CHECK(rows.k > 0, "x: expected [tokens, K > 0], got ", x.sizes());
  CheckPanels(panels, rows.format, rows.n, rows.k);
  rows.x_type = CheckActivations("x", x, x.size(0), rows.k);
  rows.x = x.const_data_ptr();
  rows.x_stride = x.stride(0);
  rows.panels = panels.const_data_ptr();
  rows.read_ahead = CurrentReadAhead();
  rows.narrow = SplitsWideVectors();
  if (bias.has_value()) rows.bias = CheckFloats("bias", *bias, rows.n);
  return rows;
}

int64_t BytesOf(RowType type) { return type == RowType::kFloat32 ? 4 : 2; }

// All rows, in passes.
void RunPasses(LinearRows rows, int64_t total) {
  const char* x = static_cast<const char*>(rows.x);
  char* y = static_cast<char*>(rows.y);
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
  for (int64_t first = 0; first < total; first += pass) {
    rows.rows = std::min(pass, total - first);
    rows.x = x + first * rows.x_stride * BytesOf(rows.x_type);
    rows.y = y + first * rows.y_stride * BytesOf(rows.y_type);
    LinearPass(rows, packed);
  }
}

}  // namespace

void RunLinear(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
               int64_t /*rows_per_product*/, const MaybeTensor& bias, const at::Tensor& y) {
  LinearRows rows = ArgsOf(x, panels, format, out_features, bias);
  rows.y_type = CheckActivations("y", y, x.size(0), rows.n);
  rows.y = y.data_ptr();
  rows.y_stride = y.stride(0);
  RunPasses(rows, x.size(0));
}

// Sums are added to h where they are made: what was just computed would else go through memory, to the thread whose
// rows they are, twice.
bool RunLinearResidual(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
                       int64_t /*rows_per_product*/, const MaybeTensor& bias, const ResidualRows& residual) {
  LinearRows rows = ArgsOf(x, panels, format, out_features, bias);
  rows.exit = LinearExit::kAdd;
  rows.y_type = residual.type;
  rows.y = residual.h;
  rows.y_stride = residual.h_stride;
  RunPasses(rows, x.size(0));
  if (!residual.has_next) return true;
  NormRows next;
  next.type = residual.type;
  next.x = residual.h;
  next.x_stride = residual.h_stride;
  next.y = residual.y;
  next.y_stride = residual.y_stride;
  next.row_stat = residual.row_stat;
  next.width = residual.width;
  next.norm = residual.next;
  RECORD_FUNCTION("normserve::norm", {});  // who times operators sees what of this one is the norm
  RunNormRows(next, x.size(0));
  return true;
}

bool RunLinearGate(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
                   int64_t /*rows_per_product*/, const MaybeTensor& bias, const ActivateRows& gated) {
  if (!GatesInRuns(out_features)) return false;
  LinearRows rows = ArgsOf(x, panels, format, out_features, bias);
  rows.exit = LinearExit::kGate;
  rows.y_type = gated.type;
  rows.y = gated.y;
  rows.y_stride = gated.y_stride;
  RunPasses(rows, x.size(0));
  return true;
}

TORCH_LIBRARY_IMPL(normserve, CPU, m) {
  m.impl("linear", RunLinear);
  m.impl("embed", EmbedCpu);
  m.impl("gather_rows", GatherRowsCpu);
}

}  // namespace normserve::kernels
