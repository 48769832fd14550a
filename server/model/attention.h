// SPDX-License-Identifier: Apache-2.0
// Self-attention of one layer: fused projection, norms and rotation on the way into the cache, paged
// attention; it holds the output projection.
#pragma once

#include "model/layer_step.h"

namespace normserve::model {

// Used by one thread; immutable after loading.
class Attention {
 public:
  struct Parts {
    PackedLinear qkv;
    PackedLinear out;
    kernels::QkvNorms norms;
    kernels::RotaryPairs pairs = kernels::RotaryPairs::kHalfSplit;
    kernels::AttentionShape shape;  // block_size is taken from the cache of each step
    float scale = 1.0f;
  };
  explicit Attention(Parts parts) : parts_(std::move(parts)) {}

  // scratch.tokens.attended = Attn(x) up to the output projection, which the layer makes together with the residual
  // addition; writes this layer's keys and values. x [tokens, hidden].
  void Run(const LayerStep& step, const at::Tensor& x) const;
  const PackedLinear& out() const { return parts_.out; }

 private:
  void SeeProjectionNorms(const LayerStep& step) const;
  Parts parts_;
};

}  // namespace normserve::model
