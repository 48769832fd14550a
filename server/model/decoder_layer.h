// SPDX-License-Identifier: Apache-2.0
// One decoder layer, the same body for every architecture: which norms stand where is data.
#pragma once

#include "model/attention.h"
#include "model/mlp.h"

namespace normserve::model {

// Used by one thread; immutable after loading.
class DecoderLayer {
 public:
  // The norms on the residual stream; those inside the sub-blocks are theirs.
  struct Norms {
    kernels::OptionalNorm attn_in, attn_out, mlp_in, mlp_out;
  };
  DecoderLayer(Attention attention, Mlp mlp, Norms norms)
      : attention_(std::move(attention)), mlp_(std::move(mlp)), norms_(std::move(norms)) {}

  const kernels::OptionalNorm& attn_in() const { return norms_.attn_in; }

  // Expects scratch.tokens.normed = attn_in(residual) where there is such a norm, made by whoever wrote the
  // residual; leaves the residual updated and normed = next(residual) if `next` is there. The last layer leaves
  // it in scratch.wanted, unless every token is wanted.
  void Run(const LayerStep& step, const kernels::OptionalNorm& next) const;

 private:
  Attention attention_;
  Mlp mlp_;
  Norms norms_;
};

}  // namespace normserve::model
