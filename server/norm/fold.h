// SPDX-License-Identifier: Apache-2.0
// Folding: a norm's gamma moves into the linear that reads its output (and a beta into that linear's
// bias), so that the kernel multiplies less. Exact in real arithmetic only: by default on for float32
// weights and off for 16-bit ones, where folding would round them again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "norm/norm_plan.h"

namespace normserve::norm {

// A linear's tensors while it is being loaded: weight [out, in] as stored (16-bit or float32), bias
// [out] float32 or undefined. Folding replaces them by float32 ones, it never writes into what it was
// given.
struct FoldableLinear {
  at::Tensor weight;
  at::Tensor bias;
};

// One layer's linears as they are packed: q | k | v and gate | up fused.
struct FoldableLayer {
  FoldableLinear qkv, attn_out, gate_up, mlp_out;
};

struct HeadShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// Folds what can be folded exactly in one layer; one line per folded scale, "layer 3: attn_in gamma
// into qkv", is added to `folded`.
//   attn_in  into q, k, v     v    into attn_out's columns, each kv head repeated for its query heads
//   mlp_in   into gate, up    up   into mlp_out's columns
//   k        into q's gamma, if k's gamma is equal within each rotary pair (else it does not commute
//            with the rotation)
void FoldLayer(int64_t layer, const HeadShape& shape, kernels::RotaryPairs pairs, LayerNorms& norms,
               FoldableLayer& linears, std::vector<std::string>& folded);

// Folds the final norm into an untied head. A tied head is the embedding too, and is never folded.
void FoldFinal(std::optional<NormSpec>& final, FoldableLinear& head,
               std::vector<std::string>& folded);

}  // namespace normserve::norm
