// SPDX-License-Identifier: Apache-2.0
// h += attn_out(Attn(attn_in(h))); h += mlp_out(MLP(mlp_in(h))), each norm fused with the residual
// addition before it, and where it can be, with the projection before that.
#include "model/decoder_layer.h"

#include <ATen/ATen.h>

namespace normserve::model {
namespace {

// What is about to be added to the residual stream: the block's output, normed where a norm follows.
void SeeDelta(const LayerStep& step, const char* site, const char* block,
              const kernels::OptionalNorm& norm) {
  if (step.probe == nullptr) return;
  step.SeeNorm(site, step.scratch.delta, norm);
  if (norm) step.SeeNorm(block, step.scratch.delta, norm);
  else step.See(block, step.scratch.delta);
}

// Where a block's output enters the residual stream: h += out(W x + b); normed = next(h).
struct Exit {
  const char* site;
  const char* block;
  const PackedLinear& projection;
  const kernels::OptionalNorm& out;
  const kernels::OptionalNorm& next;

  void Run(const LayerStep& step, const at::Tensor& x) const {
    Scratch& s = step.scratch;
    const auto& [weight, bias] = projection;
    if (!out && step.probe == nullptr) {
      return kernels::LinearResidualNorm(x, weight, bias, s.delta, s.residual, next, s.row_stat, s.normed);
    }
    kernels::Linear(x, weight, bias, s.delta);
    SeeDelta(step, site, block, out);
    kernels::ResidualNorm(s.residual, s.delta, out, next, s.row_stat, s.normed);
  }
};

}  // namespace

void DecoderLayer::Run(const LayerStep& step, const kernels::OptionalNorm& next) const {
  Scratch& s = step.scratch;
  if (norms_.attn_in) step.See("attn_in", s.normed);
  attention_.Run(step, norms_.attn_in ? s.normed : s.residual);
  Exit{"attn_out", "attn", attention_.out(), norms_.attn_out, norms_.mlp_in}.Run(step, s.attended);
  if (norms_.mlp_in) step.See("mlp_in", s.normed);
  mlp_.Run(step, norms_.mlp_in ? s.normed : s.residual);
  Exit{"mlp_out", "mlp", mlp_.out(), norms_.mlp_out, next}.Run(step, s.activated);
}

}  // namespace normserve::model
