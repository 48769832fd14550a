// SPDX-License-Identifier: Apache-2.0
// One norm as a row of numbers, and the plain-pointer arguments of the row kernels. The same for
// every device; no torch here.
//
//   y = gamma * phi(s * (x - centre)) + beta,   per row (or per group of group_width elements)
//
// v is the row's statistic: its mean square, its variance, or a value carried from an earlier site
// of the same layer (v = var_mul * carried + var_add: BHyT's second point, arXiv 2601.09719).
// s = gain                                              if stat is kNone (DyT: gain = alpha)
// s = gain / (sqrt(v + eps) + mean_coef * |mean|)       otherwise (mean_coef = 0: gain * rsqrt)
#pragma once

#include <cstdint>

namespace normserve::kernels {

enum class NormStat : int32_t { kNone = 0, kMeanSquare = 1, kVariance = 2, kCarried = 3 };
enum class NormPhi : int32_t { kIdentity = 0, kTanh = 1 };
enum class NormCentring : int32_t { kNone = 0, kSubtractMean = 1 };

// A norm without its tensors. The default is the identity without any statistic.
struct NormNumbers {
  NormStat stat = NormStat::kNone;
  NormPhi phi = NormPhi::kIdentity;
  NormCentring centring = NormCentring::kNone;
  float gain = 1.0f;
  float eps = 0.0f;
  float mean_coef = 0.0f;
  float var_mul = 1.0f;  // used by kCarried only
  float var_add = 0.0f;  // used by kCarried only
  int32_t group_width = 0;  // elements that share one statistic; 0 = the whole row
};

// How the elements of a row are stored.
enum class RowType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };  // kFloat16: CUDA only

// A norm without torch: gamma and beta are the row's width long, or null for 1 and 0.
struct RowNorm {
  NormNumbers numbers;
  const float* gamma = nullptr;
  const float* beta = nullptr;
};

// Arguments of the Norm kernel. Strides in elements; the last stride is 1.
struct NormRows {
  RowType type = RowType::kFloat32;
  const void* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  void* y = nullptr;  // [rows, width]
  int64_t y_stride = 0;
  float* row_stat = nullptr;  // [rows], null where the norm has no use for it
  int64_t width = 0;
  RowNorm norm;
};

// Arguments of ResidualNorm: h += out(delta), y = next(h).
struct ResidualRows {
  RowType type = RowType::kFloat32;
  void* h = nullptr;  // [rows, width]
  int64_t h_stride = 0;
  const void* delta = nullptr;  // [rows, width]
  int64_t delta_stride = 0;
  void* y = nullptr;  // [rows, width], null without `next`
  int64_t y_stride = 0;
  float* row_stat = nullptr;  // [rows], of `next`
  int64_t width = 0;
  bool has_out = false;
  bool has_next = false;
  RowNorm out;
  RowNorm next;
};

// Rows [begin, end) on the CPU.
void NormRowsCpu(const NormRows& args, int64_t begin, int64_t end);
void ResidualRowsCpu(const ResidualRows& args, int64_t begin, int64_t end);

}  // namespace normserve::kernels
