// SPDX-License-Identifier: Apache-2.0
// See oracle.h.
#include "kernels/oracle.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <cmath>
#include <vector>

namespace normserve::kernels {
namespace {

at::Tensor Double(const at::Tensor& t) { return t.to(at::kDouble).contiguous(); }

double Parameter(const at::Tensor& t, int64_t i, double otherwise) {
  return t.defined() ? static_cast<double>(t.const_data_ptr<float>()[i]) : otherwise;
}

double ScaleOf(const NormNumbers& n, double stat, double mean) {
  if (n.stat == NormStat::kNone) return n.gain;
  if (n.stat == NormStat::kCarried) stat = n.var_mul * stat + n.var_add;
  double spread = std::sqrt(stat + n.eps);
  if (n.mean_coef != 0.0f) spread += n.mean_coef * std::fabs(mean);
  return n.gain / spread;
}

}  // namespace

OracleNorm NormOracle(const at::Tensor& x, const Norm& norm, const at::Tensor& row_stat) {
  const at::Tensor in = Double(x);
  OracleNorm result{at::empty_like(in), at::zeros({x.size(0)}, at::kDouble)};
  const int64_t width = x.size(1);
  const int64_t group = norm.numbers.group_width > 0 ? norm.numbers.group_width : width;
  for (int64_t r = 0; r < x.size(0); ++r) {
    const double* row = in.const_data_ptr<double>() + r * width;
    double* out = result.y.data_ptr<double>() + r * width;
    for (int64_t begin = 0; begin < width; begin += group) {
      double mean = 0, square = 0, variance = 0;
      for (int64_t i = begin; i < begin + group; ++i) mean += row[i] / group;
      for (int64_t i = begin; i < begin + group; ++i) {
        square += row[i] * row[i] / group;
        variance += (row[i] - mean) * (row[i] - mean) / group;
      }
      double stat = 0;
      if (norm.numbers.stat == NormStat::kMeanSquare) stat = square;
      if (norm.numbers.stat == NormStat::kVariance) stat = variance;
      if (norm.numbers.stat == NormStat::kCarried) {
        stat = static_cast<double>(row_stat.const_data_ptr<float>()[r]);
      }
      result.stat.data_ptr<double>()[r] = stat;
      const double scale = ScaleOf(norm.numbers, stat, mean);
      const double centre = norm.numbers.centring == NormCentring::kSubtractMean ? mean : 0;
      for (int64_t i = begin; i < begin + group; ++i) {
        double v = scale * (row[i] - centre);
        if (norm.numbers.phi == NormPhi::kTanh) v = std::tanh(v);
        out[i] = Parameter(norm.gamma, i, 1) * v + Parameter(norm.beta, i, 0);
      }
    }
  }
  return result;
}

at::Tensor LinearOracle(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const at::Tensor a = Double(x), b = Double(w);
  const int64_t k = x.size(1), n = w.size(0);
  at::Tensor y = at::empty({x.size(0), n}, at::kDouble);
  for (int64_t r = 0; r < x.size(0); ++r) {
    const double* row = a.const_data_ptr<double>() + r * k;
    for (int64_t o = 0; o < n; ++o) {
      const double* weights = b.const_data_ptr<double>() + o * k;
      double sum = Parameter(bias, o, 0);
      for (int64_t i = 0; i < k; ++i) sum += row[i] * weights[i];
      y.data_ptr<double>()[r * n + o] = sum;
    }
  }
  return y;
}

at::Tensor ActivateOracle(const at::Tensor& x, Activation activation, const OptionalNorm& gate,
                          const OptionalNorm& up) {
  const bool gated = activation == Activation::kSiluGate;
  const int64_t width = gated ? x.size(1) / 2 : x.size(1);
  const auto normed = [&](int64_t at, const OptionalNorm& norm) {
    const at::Tensor part = Double(x.slice(1, at, at + width));
    return norm ? NormOracle(part, *norm, at::Tensor()).y : part;
  };
  at::Tensor y = normed(0, gate).clone();
  const at::Tensor u = gated ? normed(width, up) : at::Tensor();
  for (int64_t i = 0; i < y.numel(); ++i) {
    double& v = y.data_ptr<double>()[i];
    if (gated) {
      v = v / (1.0 + std::exp(-v)) * u.const_data_ptr<double>()[i];
    } else {
      v = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
    }
  }
  return y;
}

at::Tensor RotaryOracle(const at::Tensor& x, const at::Tensor& cos_sin, RotaryPairs pairs) {
  at::Tensor y = Double(x).clone();
  if (pairs == RotaryPairs::kNone) return y;
  const at::Tensor table = Double(cos_sin);
  const int64_t heads = x.size(1), dim = x.size(2), half = dim / 2;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const double* c = table.const_data_ptr<double>() + t * dim;
    for (int64_t h = 0; h < heads; ++h) {
      double* head = y.data_ptr<double>() + (t * heads + h) * dim;
      for (int64_t i = 0; i < half; ++i) {
        const bool split = pairs == RotaryPairs::kHalfSplit;
        double& a = head[split ? i : 2 * i];
        double& b = head[split ? i + half : 2 * i + 1];
        const double a0 = a, b0 = b;
        a = a0 * c[i] - b0 * c[half + i];
        b = b0 * c[i] + a0 * c[half + i];
      }
    }
  }
  return y;
}

at::Tensor AttentionOracle(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& positions, double scale) {
  const int64_t heads = q.size(1), dim = q.size(2), kv_heads = k.size(1);
  const at::Tensor qd = Double(q), kd = Double(k), vd = Double(v);
  at::Tensor out = at::zeros({q.size(0), heads, dim}, at::kDouble);
  for (int64_t t = 0; t < q.size(0); ++t) {
    const int64_t context = positions.const_data_ptr<int32_t>()[t] + 1;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      const double* qh = qd.const_data_ptr<double>() + (t * heads + h) * dim;
      std::vector<double> p(static_cast<size_t>(context));
      double max = -INFINITY, sum = 0;
      for (int64_t j = 0; j < context; ++j) {
        const double* kh = kd.const_data_ptr<double>() + (j * kv_heads + kv) * dim;
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) score += qh[i] * kh[i];
        p[static_cast<size_t>(j)] = score * scale;
        max = std::max(max, score * scale);
      }
      for (double& value : p) sum += value = std::exp(value - max);
      double* o = out.data_ptr<double>() + (t * heads + h) * dim;
      for (int64_t j = 0; j < context; ++j) {
        const double* vh = vd.const_data_ptr<double>() + (j * kv_heads + kv) * dim;
        for (int64_t i = 0; i < dim; ++i) o[i] += p[static_cast<size_t>(j)] / sum * vh[i];
      }
    }
  }
  return out;
}

}  // namespace normserve::kernels
