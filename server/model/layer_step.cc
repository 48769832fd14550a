// SPDX-License-Identifier: Apache-2.0
// Growing the shared buffers, and what a probe sees of fused norms.
#include "model/layer_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/large_pages.h"

namespace normserve::model {
namespace {

// The first rows * width elements of `storage` from `offset` on, as [rows, width]; moves the offset.
at::Tensor Carve(const at::Tensor& storage, int64_t& offset, int64_t rows, int64_t width) {
  const at::Tensor view = storage.narrow(0, offset, rows * width).view({rows, width});
  offset += rows * width;
  return view;
}

}  // namespace

int64_t Scratch::TokenWidth() const {
  return 3 * shape_.hidden + shape_.qkv + shape_.attended + shape_.gate_up + shape_.ffn;
}

void Scratch::Grow(at::Tensor& storage, int64_t elements, at::ScalarType dtype) const {
  if (storage.defined() && storage.numel() >= elements) return;
  storage = shape_.device.is_cpu() ? kernels::ZerosInOwnLargePages({elements}, dtype)
                                   : at::empty({elements}, at::TensorOptions().dtype(dtype).device(shape_.device));
}

void Scratch::Reserve(int64_t tokens, int64_t rows) {
  Grow(act_, tokens * TokenWidth(), shape_.dtype);
  Grow(stat_, tokens, at::kFloat);
  Grow(act_rows_, 2 * rows * shape_.hidden, shape_.dtype);
  Grow(stat_rows_, rows, at::kFloat);
  tokens_ = rows_ = -1;  // views into what was there before
}

void Scratch::Resize(int64_t tokens, int64_t rows) {
  if (tokens != tokens_) {
    Grow(act_, tokens * TokenWidth(), shape_.dtype);
    Grow(stat_, tokens, at::kFloat);
    int64_t offset = 0;
    residual = Carve(act_, offset, tokens, shape_.hidden);
    normed = Carve(act_, offset, tokens, shape_.hidden);
    delta = Carve(act_, offset, tokens, shape_.hidden);
    qkv = Carve(act_, offset, tokens, shape_.qkv);
    attended = Carve(act_, offset, tokens, shape_.attended);
    gate_up = Carve(act_, offset, tokens, shape_.gate_up);
    activated = Carve(act_, offset, tokens, shape_.ffn);
    row_stat = stat_.narrow(0, 0, tokens);
    tokens_ = tokens;
  }
  if (rows != rows_) {
    Grow(act_rows_, 2 * rows * shape_.hidden, shape_.dtype);
    Grow(stat_rows_, rows, at::kFloat);
    int64_t offset = 0;
    gathered = Carve(act_rows_, offset, rows, shape_.hidden);
    output = Carve(act_rows_, offset, rows, shape_.hidden);
    final_stat = stat_rows_.narrow(0, 0, rows);
    rows_ = rows;
  }
}

void LayerStep::SeeNorm(const char* what, const at::Tensor& x,
                        const kernels::OptionalNorm& norm) const {
  if (probe == nullptr || !norm) return;
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor stat = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  kernels::NormOp(x, *norm, stat, y);
  See(what, y);
}

}  // namespace normserve::model
