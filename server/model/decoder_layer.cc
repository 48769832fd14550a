// SPDX-License-Identifier: Apache-2.0
// h += attn_out(Attn(attn_in(h))); h += mlp_out(MLP(mlp_in(h))), each norm fused with the residual
// addition before it, and where it can be, with the projection before that.
#include "model/decoder_layer.h"

#include <ATen/ATen.h>

namespace normserve::model {
namespace {

// What is about to be added to the residual stream: the block's output, normed where a norm follows.
void SeeDelta(const LayerStep& step, const at::Tensor& delta, const char* site, const char* block,
              const kernels::OptionalNorm& norm) {
  if (step.probe == nullptr) return;
  step.SeeNorm(site, delta, norm);
  if (norm) step.SeeNorm(block, delta, norm);
  else step.See(block, delta);
}

// Where a block's output enters the residual stream: h += out(W x + b); normed = next(h).
struct Exit {
  const char* site;
  const char* block;
  const PackedLinear& projection;
  const kernels::OptionalNorm& out;
  const kernels::OptionalNorm& next;

  void Run(const LayerStep& step, Stream& s, const at::Tensor& x) const {
    const auto& [weight, bias] = projection;
    if (!out && step.probe == nullptr) {
      return kernels::LinearResidualNorm(x, weight, bias, s.delta, s.residual, next, s.row_stat, s.normed);
    }
    kernels::Linear(x, weight, bias, s.delta);
    SeeDelta(step, s.delta, site, block, out);
    kernels::ResidualNorm(s.residual, s.delta, out, next, s.row_stat, s.normed);
  }
};

// What the last layer's attention leaves to do: the rows that logits are asked for, in scratch.wanted. Nobody reads
// the others any more, and in a prompt they are all but one.
Stream& GatherWanted(const LayerStep& step, bool row_stat) {
  const Stream& all = step.scratch.tokens;
  Stream& s = step.scratch.wanted;
  kernels::GatherRows(all.residual, step.input.logits_rows, s.residual);
  kernels::GatherRows(all.attended, step.input.logits_rows, s.attended);
  if (row_stat) {
    at::Tensor column = s.row_stat.unsqueeze(1);
    kernels::GatherRows(all.row_stat.unsqueeze(1), step.input.logits_rows, column);
  }
  return s;
}

}  // namespace

void DecoderLayer::Run(const LayerStep& step, const kernels::OptionalNorm& next) const {
  Stream& all = step.scratch.tokens;
  if (norms_.attn_in) step.See("attn_in", all.normed);
  attention_.Run(step, norms_.attn_in ? all.normed : all.residual);
  const bool carries = norms_.mlp_in && norms_.mlp_in->numbers.stat == kernels::NormStat::kCarried;
  Stream& s = step.last && !step.input.every_token ? GatherWanted(step, carries) : all;
  Exit{"attn_out", "attn", attention_.out(), norms_.attn_out, norms_.mlp_in}.Run(step, s, s.attended);
  if (norms_.mlp_in) step.See("mlp_in", s.normed);
  mlp_.Run(step, s, norms_.mlp_in ? s.normed : s.residual);
  Exit{"mlp_out", "mlp", mlp_.out(), norms_.mlp_out, next}.Run(step, s, s.activated);
}

}  // namespace normserve::model
