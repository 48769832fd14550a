// SPDX-License-Identifier: Apache-2.0
// h += attn_out(Attn(attn_in(h))); h += mlp_out(MLP(mlp_in(h))), each norm fused with the residual
// addition before it.
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

}  // namespace

void DecoderLayer::Run(const LayerStep& step, const kernels::OptionalNorm& next) const {
  Scratch& s = step.scratch;
  if (norms_.attn_in) step.See("attn_in", s.normed);
  attention_.Run(step, norms_.attn_in ? s.normed : s.residual);
  SeeDelta(step, "attn_out", "attn", norms_.attn_out);
  kernels::ResidualNorm(s.residual, s.delta, norms_.attn_out, norms_.mlp_in, s.row_stat, s.normed);
  if (norms_.mlp_in) step.See("mlp_in", s.normed);
  mlp_.Run(step, norms_.mlp_in ? s.normed : s.residual);
  SeeDelta(step, "mlp_out", "mlp", norms_.mlp_out);
  kernels::ResidualNorm(s.residual, s.delta, norms_.mlp_out, next, s.row_stat, s.normed);
}

}  // namespace normserve::model
