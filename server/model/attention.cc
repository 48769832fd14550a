// SPDX-License-Identifier: Apache-2.0
// Three calls of kernels.
#include "model/attention.h"

#include <ATen/core/Tensor.h>

namespace normserve::model {

void Attention::Run(const LayerStep& step, const at::Tensor& x) const {
  Scratch& s = step.scratch;
  kernels::AttentionShape shape = parts_.shape;
  shape.block_size = step.cache.block_size;
  at::Tensor& keys = step.cache.keys[step.layer];
  at::Tensor& values = step.cache.values[step.layer];
  kernels::Linear(x, parts_.qkv.weight, parts_.qkv.bias, s.qkv);
  if (step.probe != nullptr) SeeProjectionNorms(step);
  kernels::QkvNormRotaryWrite(s.qkv, parts_.norms, step.cos_sin, parts_.pairs,
                              step.input.positions, step.input.slots, shape, keys, values);
  kernels::PagedAttention(s.qkv, keys, values, step.input.block_tables, step.input.token_sequence,
                          step.input.positions, step.input.tiles, step.input.tile_work, parts_.scale, shape,
                          s.tokens.attended);
}

void Attention::SeeProjectionNorms(const LayerStep& step) const {
  const at::Tensor& qkv = step.scratch.qkv;
  const int64_t q = parts_.shape.heads * parts_.shape.head_dim;
  const int64_t kv = parts_.shape.kv_heads * parts_.shape.head_dim;
  step.SeeNorm("q", qkv.narrow(1, 0, q), parts_.norms.q);
  step.SeeNorm("k", qkv.narrow(1, q, kv), parts_.norms.k);
  step.SeeNorm("v", qkv.narrow(1, q + kv, kv), parts_.norms.v);
}

}  // namespace normserve::model
