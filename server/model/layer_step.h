// SPDX-License-Identifier: Apache-2.0
// What the layers of one forward pass share: the step's input, its buffers, the cache and the probe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/causal_lm.h"

namespace normserve::model {

// A linear layer as the kernels take it.
struct PackedLinear {
  kernels::PackedWeight weight;
  at::Tensor bias;  // [out] float32, or undefined
};

// Widths of the buffers, fixed at load.
struct ScratchShape {
  int64_t hidden = 0;
  int64_t qkv = 0;
  int64_t attended = 0;  // heads * head_dim
  int64_t gate_up = 0;
  int64_t ffn = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// Rows of the residual stream with what a layer makes of them.
struct Stream {
  at::Tensor residual;   // [rows, hidden]; h
  at::Tensor attended;   // [rows, heads * head_dim]
  at::Tensor row_stat;   // [rows] float32; BHyT's statistic between its two points
  at::Tensor normed;     // [rows, hidden]; what the next linear reads, where a norm stands before it
  at::Tensor delta;      // [rows, hidden]; a sub-block's output before it is added
  at::Tensor gate_up;    // [rows, 2 ffn], or [rows, ffn] without a gate
  at::Tensor activated;  // [rows, ffn]
};

// Intermediate results of one step, reused by every layer. Buffers grow to the largest step seen;
// between steps of the same size nothing is allocated.
class Scratch {
 public:
  explicit Scratch(const ScratchShape& shape) : shape_(shape) {}
  // Makes room for so many rows, if there is less.
  void Reserve(int64_t tokens, int64_t rows);
  // Sets every view to so many rows; rows <= tokens.
  void Resize(int64_t tokens, int64_t rows);

  Stream tokens;          // every token of the step
  // Those that logits are asked for. Its residual, attended and row_stat are its own, all else lies in `tokens`.
  Stream wanted;
  at::Tensor qkv;         // [tokens, (heads + 2 kv_heads) * head_dim]
  at::Tensor output;      // [rows, hidden]; after the final norm

 private:
  int64_t TokenWidth() const;
  int64_t RowWidth() const { return 2 * shape_.hidden + shape_.attended; }
  void Grow(at::Tensor& storage, int64_t elements, at::ScalarType dtype) const;

  ScratchShape shape_;
  int64_t token_count_ = -1;
  int64_t row_count_ = -1;
  at::Tensor act_;        // storage of the views over tokens
  at::Tensor act_rows_;   // storage of what `wanted` owns, and of the output
  at::Tensor stat_;
  at::Tensor stat_rows_;
};

struct LayerStep {
  const StepInput& input;
  KvCache& cache;
  const at::Tensor& cos_sin;
  Scratch& scratch;
  const Probe* probe;  // not owned; null outside tests
  size_t layer;
  bool last;  // of all layers

  void See(const char* what, const at::Tensor& value) const {
    if (probe != nullptr) (*probe)(absl::StrCat("layers.", layer, ".", what), value);
  }
  // For norms inside a fused op, whose output never exists by itself: computed again for the probe.
  void SeeNorm(const char* what, const at::Tensor& x, const kernels::OptionalNorm& norm) const;
};

}  // namespace normserve::model
