// SPDX-License-Identifier: Apache-2.0
// Linear, LinearResidualNorm's one pass, Embed and GatherRows on a CUDA device. Few rows are our own kernel's
// (linear.cuh), more are cuBLAS's through LibTorch, for which a quantised weight is widened first. Under
// NORMSERVE_CUDA_EMULATED all rows are summed as our kernel sums them, cuBLAS's too.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/cuda_rows.h"
#include "kernels/cuda_stream.h"
#include "kernels/device_rows.h"
#include "kernels/linear_cuda.h"
#include "kernels/op_args.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {
namespace {

// Whether a product is our kernel's, by which a row's bits depend on that row alone. cuBLAS sums in an order of
// its own, which the number of rows decides.
bool IsRowKernels(int64_t rows, int64_t rows_per_product) {
  if (rows_per_product > 0) return false;
#if defined(NORMSERVE_CUDA_EMULATED)
  return true;
#else
  return rows <= kMaxLinearRows;
#endif
}

// The tensor that PackWeight makes of a [n, k] weight.
WeightFormat CheckWeight(const at::Tensor& weight, int64_t format_number, int64_t n, int64_t k) {
  const WeightFormat format = CheckCudaFormat(format_number);
  const at::ScalarType dtype = IsQuantised(format)                   ? at::kByte
                               : format == WeightFormat::kBFloat16 ? at::kBFloat16
                                                                    : at::kFloat;
  const int64_t width = IsQuantised(format) ? LinearRowBytes(format, k) : k;
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.size(0) == n && weight.size(1) == width &&
                  weight.scalar_type() == dtype,
              "panels: expected packed ", dtype, " [", n, ", ", width, "], got ", weight.scalar_type(), " ",
              weight.sizes());
  return format;
}

// A quantised weight in x's dtype.
at::Tensor Widened(const at::Tensor& weight, WeightFormat format, const at::Tensor& x) {
  const at::Tensor out = StreamScratch({weight.size(0), x.size(1)}, x.scalar_type());
  WidenRows args;
  args.format = format;
  args.out_type = x.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16;
  args.weight = weight.const_data_ptr();
  args.weight_stride = weight.size(1);
  args.out = out.data_ptr();
  args.inputs = x.size(1);
  WidenWeightCuda(args, weight.size(0), CurrentStream());
  return out;
}

// What is the same with and without a residual.
CudaLinearRows LinearArgs(const at::Tensor& x, const at::Tensor& weight, WeightFormat format,
                          const MaybeTensor& bias) {
  CudaLinearRows args;
  args.x_type = CheckActivations("x", x, x.size(0), -1);
  args.format = format;
  args.weight = weight.const_data_ptr();
  args.weight_stride = weight.stride(0) * weight.element_size();
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  args.inputs = x.size(1);
  args.outputs = weight.size(0);
  if (bias.has_value()) args.bias = CheckFloats("bias", *bias, args.outputs);
  return args;
}

// `elements` further on; null stays null.
const void* Forward(const void* p, RowType type, int64_t elements) {
  return p == nullptr ? p : static_cast<const char*>(p) + elements * (type == RowType::kFloat32 ? 4 : 2);
}
void* Forward(void* p, RowType type, int64_t elements) {
  return const_cast<void*>(Forward(static_cast<const void*>(p), type, elements));
}

void RunLinearRows(CudaLinearRows args, int64_t rows) {
#if defined(NORMSERVE_CUDA_EMULATED)
  constexpr int64_t kForFibers = 64;  // outputs; a model's layers have more
  if (args.outputs >= kForFibers) return LinearRowsInOrder(args, rows, CurrentStream());
#endif
  while (rows > 0) {
    const int64_t some = std::min(rows, kMaxLinearRows);
    LinearRowsCuda(args, some, CurrentStream());
    args.x = Forward(args.x, args.x_type, some * args.x_stride);
    args.y = Forward(args.y, args.y_type, some * args.y_stride);
    args.h = Forward(args.h, args.y_type, some * args.h_stride);
    args.next_y = Forward(args.next_y, args.y_type, some * args.next_y_stride);
    if (args.row_stat != nullptr) args.row_stat += some;
    rows -= some;
  }
}

// y = x W^T + bias by cuBLAS, whose stand-in under emulation is our kernel.
#if defined(NORMSERVE_CUDA_EMULATED)
void LibraryProduct(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, const at::Tensor& y) {
  const bool narrow = weight.scalar_type() == at::kBFloat16;
  CudaLinearRows args =
      LinearArgs(x, weight, narrow ? WeightFormat::kBFloat16 : WeightFormat::kFloat32, bias);
  args.y_type = CheckActivations("y", y, x.size(0), weight.size(0));
  args.y = y.data_ptr();
  args.y_stride = y.stride(0);
  RunLinearRows(args, x.size(0));
}
#else
void LibraryProduct(const at::Tensor& x, const at::Tensor& weight, const MaybeTensor& bias, const at::Tensor& y) {
  at::Tensor out = y;
  const at::Tensor w = weight.t();
  const bool mixed = x.scalar_type() != weight.scalar_type();  // float32 activations: for checks, not for speed
  if (mixed || bias.has_value()) {
    // Rounded once, after the bias, as on the CPU.
    const bool plain = mixed || x.scalar_type() == at::kFloat;
    const at::Tensor sums = plain ? at::mm(x.to(at::kFloat), w.to(at::kFloat)) : at::mm(x, w, at::kFloat);
    out.copy_(bias.has_value() ? sums + *bias : sums);
  } else if (x.scalar_type() == y.scalar_type()) {
    at::mm_out(out, x, w);
  } else {
    at::mm_out(out, x, w, y.scalar_type());
  }
}
#endif

void CheckRange(const char* name, const at::Tensor& t, int64_t end) {
  const int32_t* values = HostInts(t);
  for (int64_t i = 0; values != nullptr && i < t.numel(); ++i) {
    TORCH_CHECK(values[i] >= 0 && values[i] < end, name, "[", i, "]: ", values[i], ", allowed 0..",
                end - 1);
  }
}

void EmbedOp(const at::Tensor& ids, const at::Tensor& weight, int64_t format, int64_t table_rows,
             double scale, const MaybeTensor& positions, const MaybeTensor& positions_table,
             const at::Tensor& out) {
  const int64_t tokens = out.size(0);
  EmbedRows args;
  args.width = out.size(-1);
  args.table_format = CheckWeight(weight, format, table_rows, args.width);
  args.out_type = CheckActivations("out", out, tokens, args.width);
  args.table_type =
      weight.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16;
  args.table = weight.const_data_ptr();
  args.ids = CheckInts("ids", ids, tokens);
  args.scale = static_cast<float>(scale);
  args.out = out.data_ptr();
  args.out_stride = out.stride(0);
  CheckRange("ids", ids, table_rows);
  TORCH_CHECK(positions.has_value() || !positions_table.has_value(),
              "positions: needed by positions_table");
  if (positions_table.has_value()) {
    args.positions = CheckInts("positions", *positions, tokens);
    args.positions_table = CheckFloats("positions_table", *positions_table, positions_table->numel());
    CheckRange("positions", *positions, positions_table->size(0));
  }
  if (tokens > 0) EmbedRowsCuda(args, tokens, CurrentStream());
}

void GatherRowsOp(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& out) {
  GatherArgs args;
  args.width = x.size(1);
  args.type = CheckActivations("x", x, x.size(0), args.width);
  TORCH_CHECK(CheckActivations("out", out, out.size(0), args.width) == args.type,
              "out: expected the dtype of x");
  args.x = x.const_data_ptr();
  args.x_stride = x.stride(0);
  args.rows = CheckInts("rows", rows, out.size(0));
  args.out = out.data_ptr();
  args.out_stride = out.stride(0);
  CheckRange("rows", rows, x.size(0));
  if (out.size(0) > 0) GatherRowsCuda(args, out.size(0), CurrentStream());
}

}  // namespace

void RunLinear(const at::Tensor& x, const at::Tensor& weight, int64_t format_number, int64_t out_features,
               int64_t rows_per_product, const MaybeTensor& bias, const at::Tensor& y) {
  const WeightFormat format = CheckWeight(weight, format_number, out_features, x.size(-1));
  const int64_t rows = x.size(0);
  CudaLinearRows args = LinearArgs(x, weight, format, bias);
  args.y_type = CheckActivations("y", y, rows, out_features);
  args.y = y.data_ptr();
  args.y_stride = y.stride(0);
  if (IsRowKernels(rows, rows_per_product)) return RunLinearRows(args, rows);
  const at::Tensor w = IsQuantised(format) ? Widened(weight, format, x) : weight;
  if (rows_per_product == 0) return LibraryProduct(x, w, bias, y);
  TORCH_CHECK(rows % rows_per_product == 0, "x: ", rows, " rows; allowed: a multiple of ", rows_per_product);
  for (int64_t row = 0; row < rows; row += rows_per_product) {
    LibraryProduct(x.narrow(0, row, rows_per_product), w, bias, y.narrow(0, row, rows_per_product));
  }
}

bool RunLinearGate(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t, const MaybeTensor&,
                   const ActivateRows&) {
  return false;
}

bool RunLinearResidual(const at::Tensor& x, const at::Tensor& weight, int64_t format_number,
                       int64_t out_features, int64_t rows_per_product, const MaybeTensor& bias,
                       const ResidualRows& residual) {
  const bool by_elements = !residual.has_out && (!residual.has_next || LinearTakesResidual(residual.next));
  if (!by_elements || !IsRowKernels(x.size(0), rows_per_product)) return false;
  const WeightFormat format = CheckWeight(weight, format_number, out_features, x.size(-1));
  CudaLinearRows args = LinearArgs(x, weight, format, bias);
  args.y_type = residual.type;
  args.has_residual = true;
  args.has_next = residual.has_next;
  args.h = residual.h;
  args.h_stride = residual.h_stride;
  args.next = residual.next;
  args.row_stat = residual.row_stat;
  args.next_y = residual.y;
  args.next_y_stride = residual.y_stride;
  RunLinearRows(args, x.size(0));
  return true;
}

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) {
  m.impl("linear", RunLinear);
  m.impl("embed", EmbedOp);
  m.impl("gather_rows", GatherRowsOp);
}

}  // namespace normserve::kernels
