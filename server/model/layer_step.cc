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
  Grow(act_rows_, rows * RowWidth(), shape_.dtype);
  Grow(stat_rows_, rows, at::kFloat);
  token_count_ = row_count_ = -1;  // views into what was there before
}

void Scratch::Resize(int64_t token_count, int64_t row_count) {
  if (token_count == token_count_ && row_count == row_count_) return;
  token_count_ = row_count_ = -1;  // should memory end before all views are set
  Grow(act_, token_count * TokenWidth(), shape_.dtype);
  Grow(stat_, token_count, at::kFloat);
  int64_t offset = 0;
  tokens.residual = Carve(act_, offset, token_count, shape_.hidden);
  tokens.normed = Carve(act_, offset, token_count, shape_.hidden);
  tokens.delta = Carve(act_, offset, token_count, shape_.hidden);
  qkv = Carve(act_, offset, token_count, shape_.qkv);
  tokens.attended = Carve(act_, offset, token_count, shape_.attended);
  tokens.gate_up = Carve(act_, offset, token_count, shape_.gate_up);
  tokens.activated = Carve(act_, offset, token_count, shape_.ffn);
  tokens.row_stat = stat_.narrow(0, 0, token_count);

  Grow(act_rows_, row_count * RowWidth(), shape_.dtype);
  Grow(stat_rows_, row_count, at::kFloat);
  offset = 0;
  wanted.residual = Carve(act_rows_, offset, row_count, shape_.hidden);
  wanted.attended = Carve(act_rows_, offset, row_count, shape_.attended);
  output = Carve(act_rows_, offset, row_count, shape_.hidden);
  wanted.row_stat = stat_rows_.narrow(0, 0, row_count);
  wanted.normed = tokens.normed.narrow(0, 0, row_count);
  wanted.delta = tokens.delta.narrow(0, 0, row_count);
  wanted.gate_up = tokens.gate_up.narrow(0, 0, row_count);
  wanted.activated = tokens.activated.narrow(0, 0, row_count);
  token_count_ = token_count;
  row_count_ = row_count;
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
