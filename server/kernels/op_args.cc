// SPDX-License-Identifier: Apache-2.0
// See op_args.h.
#include "kernels/op_args.h"

#include <c10/util/Exception.h>

#include "kernels/norm_math.h"

namespace normserve::kernels {

NumberArray ToArray(const NormNumbers& n) {
  return {static_cast<double>(n.stat),
          static_cast<double>(n.phi),
          static_cast<double>(n.centring),
          n.gain,
          n.eps,
          n.mean_coef,
          n.var_mul,
          n.var_add,
          static_cast<double>(n.group_width)};
}

RowNorm ToRowNorm(const char* what, Numbers numbers, const MaybeTensor& gamma,
                  const MaybeTensor& beta, int64_t width) {
  TORCH_CHECK(numbers.size() == std::tuple_size_v<NumberArray>, what, ": a norm is ",
              std::tuple_size_v<NumberArray>, " numbers, got ", numbers.size());
  RowNorm norm;
  NormNumbers& n = norm.numbers;
  n.stat = static_cast<NormStat>(static_cast<int32_t>(numbers[0]));
  n.phi = static_cast<NormPhi>(static_cast<int32_t>(numbers[1]));
  n.centring = static_cast<NormCentring>(static_cast<int32_t>(numbers[2]));
  n.gain = static_cast<float>(numbers[3]);
  n.eps = static_cast<float>(numbers[4]);
  n.mean_coef = static_cast<float>(numbers[5]);
  n.var_mul = static_cast<float>(numbers[6]);
  n.var_add = static_cast<float>(numbers[7]);
  n.group_width = static_cast<int32_t>(numbers[8]);
  TORCH_CHECK(n.group_width >= 0 && (n.group_width == 0 || width % n.group_width == 0), what,
              ": group_width ", n.group_width, " does not divide the width ", width);
  if (gamma.has_value()) norm.gamma = CheckFloats("gamma", *gamma, width);
  if (beta.has_value()) norm.beta = CheckFloats("beta", *beta, width);
  return norm;
}

RowType CheckActivations(const char* name, const at::Tensor& t, int64_t rows, int64_t width) {
  TORCH_CHECK(t.dim() == 2, name, ": expected 2 dimensions, got ", t.dim());
  TORCH_CHECK(t.size(0) == rows && (width < 0 || t.size(1) == width), name, ": expected shape [",
              rows, ", ", width, "], got ", t.sizes());
  TORCH_CHECK(t.size(1) <= 1 || t.stride(1) == 1, name, ": last stride must be 1, got ",
              t.stride(1));
  TORCH_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, name,
              ": expected float32 or bfloat16, got ", t.scalar_type());
  return t.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16;
}

const float* CheckFloats(const char* name, const at::Tensor& t, int64_t count) {
  TORCH_CHECK(t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() == count, name,
              ": expected ", count, " packed float32 values, got ", t.scalar_type(), " ",
              t.sizes());
  return t.const_data_ptr<float>();
}

const int32_t* CheckInts(const char* name, const at::Tensor& t, int64_t count) {
  TORCH_CHECK(t.scalar_type() == at::kInt && t.is_contiguous() && t.numel() == count, name,
              ": expected ", count, " packed int32 values, got ", t.scalar_type(), " ", t.sizes());
  return t.const_data_ptr<int32_t>();
}

float* CheckRowStat(const MaybeTensor& row_stat, const NormNumbers& numbers, int64_t rows) {
  const bool carried = numbers.stat == NormStat::kCarried;
  TORCH_CHECK(row_stat.has_value() || !carried, "row_stat: needed by a carried statistic");
  if (!row_stat.has_value() || !(carried || MeasuresStat(numbers))) return nullptr;
  CheckFloats("row_stat", *row_stat, rows);
  return row_stat->data_ptr<float>();
}

}  // namespace normserve::kernels
