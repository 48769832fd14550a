// SPDX-License-Identifier: Apache-2.0
// The exact folds, one small function each.
#include "norm/fold.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mv.h>

#include "absl/strings/str_cat.h"

namespace normserve::norm {
namespace {

void ScaleColumns(FoldableLinear& linear, const at::Tensor& gamma) {
  linear.weight = linear.weight.to(at::kFloat) * gamma.unsqueeze(0);
}

// W (gamma * u + beta) + b = (W * gamma) u + (b + W beta). `beta` must be folded before gamma.
bool FoldInto(std::optional<NormSpec>& norm, FoldableLinear& linear) {
  if (!norm || (!norm->op.gamma.defined() && !norm->op.beta.defined())) return false;
  if (norm->op.beta.defined()) {
    const at::Tensor shift = at::mv(linear.weight.to(at::kFloat), norm->op.beta);
    linear.bias = linear.bias.defined() ? linear.bias + shift : shift;
    norm->op.beta = at::Tensor();
  }
  if (norm->op.gamma.defined()) {
    ScaleColumns(linear, norm->op.gamma);
    norm->op.gamma = at::Tensor();
  }
  return true;
}

// [kv_heads * head_dim] -> [heads * head_dim], each kv head once per query head that shares it.
at::Tensor RepeatHeads(const at::Tensor& gamma, const HeadShape& shape) {
  return gamma.reshape({shape.kv_heads, shape.head_dim})
      .repeat_interleave(shape.heads / shape.kv_heads, 0)
      .reshape({shape.heads * shape.head_dim});
}

bool EqualWithinPairs(const at::Tensor& gamma, kernels::RotaryPairs pairs, const HeadShape& shape) {
  if (pairs == kernels::RotaryPairs::kNone) return true;
  const int64_t half = shape.head_dim / 2;
  const bool split = pairs == kernels::RotaryPairs::kHalfSplit;
  const at::Tensor view =
      split ? gamma.reshape({-1, 2, half}) : gamma.reshape({-1, half, 2}).transpose(1, 2);
  return view.select(1, 0).equal(view.select(1, 1));
}

// A projection's own norm that has only a gamma to give away.
bool HasGammaOnly(const std::optional<NormSpec>& norm) {
  return norm && norm->op.gamma.defined() && !norm->op.beta.defined();
}

bool FoldValueGamma(const HeadShape& shape, LayerNorms& norms, FoldableLinear& attn_out) {
  std::optional<NormSpec>& v = norms.at(NormSite::v);
  if (!HasGammaOnly(v)) return false;
  ScaleColumns(attn_out, RepeatHeads(v->op.gamma, shape));
  v->op.gamma = at::Tensor();
  return true;
}

bool FoldUpGamma(LayerNorms& norms, FoldableLinear& mlp_out) {
  std::optional<NormSpec>& up = norms.at(NormSite::up);
  if (!HasGammaOnly(up)) return false;
  ScaleColumns(mlp_out, up->op.gamma);
  up->op.gamma = at::Tensor();
  return true;
}

bool FoldKeyGamma(const HeadShape& shape, kernels::RotaryPairs pairs, LayerNorms& norms) {
  std::optional<NormSpec>& q = norms.at(NormSite::q);
  std::optional<NormSpec>& k = norms.at(NormSite::k);
  if (!HasGammaOnly(q) || !HasGammaOnly(k)) return false;
  if (!EqualWithinPairs(k->op.gamma, pairs, shape)) return false;
  q->op.gamma = q->op.gamma * RepeatHeads(k->op.gamma, shape);
  k->op.gamma = at::Tensor();
  return true;
}

}  // namespace

void FoldLayer(int64_t layer, const HeadShape& shape, kernels::RotaryPairs pairs, LayerNorms& norms,
               FoldableLayer& linears, std::vector<std::string>& folded) {
  const auto note = [&](bool done, const char* what) {
    if (done) folded.push_back(absl::StrCat("layer ", layer, ": ", what));
  };
  note(FoldInto(norms.at(NormSite::attn_in), linears.qkv), "attn_in into q, k, v");
  note(FoldInto(norms.at(NormSite::mlp_in), linears.gate_up), "mlp_in into gate, up");
  note(FoldValueGamma(shape, norms, linears.attn_out), "v gamma into the output projection");
  note(FoldUpGamma(norms, linears.mlp_out), "up gamma into the down projection");
  note(FoldKeyGamma(shape, pairs, norms), "k gamma into q's gamma");
}

void FoldFinal(std::optional<NormSpec>& final, FoldableLinear& head,
               std::vector<std::string>& folded) {
  if (FoldInto(final, head)) folded.push_back("final into the head");
}

}  // namespace normserve::norm
