// SPDX-License-Identifier: Apache-2.0
// PackWeight on a CUDA device: weights output by output, as weight_format.h says, made on the host at load.
// Int8 weights are bit for bit those of the CPU (quantise_simd.cc says why scales are rounded up).
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/device_rows.h"
#include "kernels/linear_cuda.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {
namespace {

// The largest magnitude, or NaN where one of them is not finite.
float Largest(const float* w, int64_t n) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(w[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(w[i]));
  }
  return largest;
}

// The least bfloat16 that is not below v >= 0.
c10::BFloat16 RoundedUpTo16(float v) {
  c10::BFloat16 nearest(v);
  if (static_cast<float>(nearest) < v) ++nearest.x;
  return nearest;
}

// Values and scale of one group; a scale of NaN stands for the group that was not finite.
void PackGroup(const float* w, int64_t n, int8_t* q, uint8_t* scale_bytes) {
  const c10::BFloat16 scale = RoundedUpTo16(Largest(w, n) / 127.0f);
  std::memcpy(scale_bytes, &scale, sizeof(scale));
  const float step = static_cast<float>(scale);
  const float inverse = step > 1e-37f ? 1.0f / step : 0.0f;  // 0 where 1 / step could overflow, and of NaN
  if (inverse == 0.0f) return;
  for (int64_t i = 0; i < n; ++i) {
    q[i] = static_cast<int8_t>(std::lrint(std::min(std::max(w[i] * inverse, -127.0f), 127.0f)));
  }
}

void PackInt8Row(const float* w, int64_t inputs, uint8_t* row) {
  uint8_t* scales = row + RowScalesAt(WeightFormat::kInt8, inputs);
  for (int64_t begin = 0; begin < inputs; begin += kGroup) {
    const int64_t n = std::min(kGroup, inputs - begin);
    PackGroup(w + begin, n, reinterpret_cast<int8_t*>(row) + begin, scales + begin / kGroup * 2);
  }
}

void PackFloat8Row(const float* w, int64_t inputs, uint8_t* row) {
  constexpr float kMost = 448.0f;
  const float scale = Largest(w, inputs) / kMost;
  std::memcpy(row + RowScalesAt(WeightFormat::kFloat8, inputs), &scale, sizeof(scale));
  if (!(scale > 0.0f)) return;
  for (int64_t i = 0; i < inputs; ++i) {
    row[i] = c10::Float8_e4m3fn(std::min(std::max(w[i] / scale, -kMost), kMost)).x;
  }
}

// body(begin, end) over rows, by as many threads as are worth their start.
template <class Body>
void InThreads(int64_t rows, int64_t row_cost, const Body& body) {
  constexpr int64_t kWorthAThread = 1 << 20;
  const int64_t most = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(rows * row_cost / kWorthAThread, 1, most);
  std::vector<std::thread> others;
  int64_t left = rows;  // of the calling thread: all where the system gives no more threads
  try {
    for (int64_t t = threads; t > 1; --t, left = rows * t / threads) {
      others.emplace_back(body, rows * (t - 1) / threads, left);
    }
  } catch (const std::system_error&) {
  }
  body(int64_t{0}, left);
  for (std::thread& other : others) other.join();
}

template <typename From>
at::Tensor Quantised(const at::Tensor& weight, WeightFormat format) {
  const int64_t n = weight.size(0), k = weight.size(1), row_bytes = LinearRowBytes(format, k);
  at::Tensor rows = at::zeros({n, row_bytes}, at::kByte);
  const From* from = weight.const_data_ptr<From>();
  uint8_t* to = rows.data_ptr<uint8_t>();
  const auto pack = format == WeightFormat::kInt8 ? PackInt8Row : PackFloat8Row;
  InThreads(n, k, [=](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(from + r * k, k, row.begin());
      pack(row.data(), k, to + r * row_bytes);
    }
  });
  return rows;
}

at::Tensor Quantise(const at::Tensor& weight, WeightFormat format) {
  switch (weight.scalar_type()) {
    case at::kFloat: return Quantised<float>(weight, format);
    case at::kBFloat16: return Quantised<at::BFloat16>(weight, format);
    default: return Quantised<at::Half>(weight, format);
  }
}

// A tensor of the caller's own, never a view of the checkpoint's mapped file.
at::Tensor PackWeightOp(const at::Tensor& weight, int64_t format_number, bool /*gate_up*/) {
  TORCH_CHECK(weight.dim() == 2, "weight: expected [N, K], got ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16 ||
                  weight.scalar_type() == at::kHalf,
              "weight: expected float32, bfloat16 or float16, got ", weight.scalar_type());
  const WeightFormat format = CheckCudaFormat(format_number);
  if (IsQuantised(format)) {
    return Quantise(weight.to(at::kCPU).contiguous(), format).to(weight.device());
  }
  const at::ScalarType dtype = format == WeightFormat::kFloat32 ? at::kFloat : at::kBFloat16;
  return weight.to(dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

}  // namespace

WeightFormat CheckCudaFormat(int64_t format) {
  TORCH_CHECK(format != static_cast<int64_t>(WeightFormat::kInt4),
              "format: 3 (int4) has kernels on the CPU only");
  if (format == static_cast<int64_t>(WeightFormat::kBFloat16Dot)) return WeightFormat::kBFloat16;
  if (format == static_cast<int64_t>(WeightFormat::kFloat16)) return WeightFormat::kFloat32;  // widened when packed
  TORCH_CHECK(format >= 0 && format <= static_cast<int64_t>(WeightFormat::kFloat8), "format: ", format,
              ", on this device allowed 0 (float32), 1 (bfloat16), 2 (int8) and 4 (float8)");
  return static_cast<WeightFormat>(format);
}

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) { m.impl("pack_weight", PackWeightOp); }

}  // namespace normserve::kernels
