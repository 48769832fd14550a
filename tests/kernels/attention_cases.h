// SPDX-License-Identifier: Apache-2.0
// What the tests of QkvNormRotaryWrite and PagedAttention share: types as they meet, a paged cache, its reading back.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "kernels/simd_target.h"
#include "kernels/simd_target_scope.h"

namespace normserve::kernels {

// Of the activations and of the cache.
struct Types {
  at::ScalarType act, cache;
};
inline constexpr Types kTypes[] = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}};

inline double HalfUlp(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 0x1p-8 * 1.02; }

// Whether the cache lies by pairs.
inline bool Paired(at::ScalarType cache) { return cache == at::kBFloat16 && !AnotherDevice(); }

// Whether attention multiplies pairs of bfloat16 on the target in use: queries and the scores' weights are rounded.
inline bool Dots(at::ScalarType cache) { return Paired(cache) && HasBFloat16Dot(); }

// How far rounded weights can move a mean of values.
inline double WeightRounding(at::ScalarType cache, const at::Tensor& values) {
  return Dots(cache) ? 0x1p-9 * values.abs().max().item<double>() : 0.0;
}

// A cache whose every slot is NaN until written, and block tables that jump about. Of bytes: each is -1, so that
// scales are NaN.
struct Cache {
  AttentionShape shape;
  at::Tensor k, v, tables;  // tables [sequences, max_blocks]

  Cache(const AttentionShape& s, at::ScalarType dtype, int64_t sequences, int64_t tokens,
        uint32_t seed)
      : shape(s) {
    const int64_t per = (tokens + s.block_size - 1) / s.block_size, blocks = sequences * per + 3;
    if (dtype == at::kChar) {
      k = at::full({blocks, s.kv_heads, s.block_size * (s.head_dim + 4)}, -1, dtype);
      v = k.clone();
    } else {
      k = at::full({blocks, s.kv_heads, s.head_dim, s.block_size}, NAN, dtype);
      v = at::full({blocks, s.kv_heads, s.block_size, s.head_dim}, NAN, dtype);
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    order.resize(static_cast<size_t>(sequences * per));
    tables = at::tensor(order, at::kInt).view({sequences, per});
  }

  at::Tensor Slots(int64_t sequence, const at::Tensor& positions) const {
    at::Tensor slots = at::empty_like(positions);
    for (int64_t t = 0; t < positions.numel(); ++t) {
      const int32_t p = positions[t].item<int32_t>();
      const int32_t size = static_cast<int32_t>(shape.block_size);
      slots[t] = tables[sequence][p / size].item<int32_t>() * size + p % size;
    }
    return slots;
  }
};

inline at::Tensor Split(const at::Tensor& qkv, const AttentionShape& s, int part) {
  const int64_t begin[] = {0, s.heads, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads};
  return qkv.slice(1, begin[part] * s.head_dim, begin[part + 1] * s.head_dim)
      .reshape({qkv.size(0), -1, s.head_dim});
}

// Keys and values of `positions` read back from the cache, [tokens, kv_heads, dim].
inline std::pair<at::Tensor, at::Tensor> ReadBack(const Cache& c, const at::Tensor& slots) {
  const bool paired = Paired(c.k.scalar_type());
  std::vector<at::Tensor> k, v;
  for (int64_t t = 0; t < slots.numel(); ++t) {
    const int64_t slot = slots[t].item<int32_t>(), size = c.shape.block_size;
    const int64_t block = slot / size, at = slot % size, heads = c.shape.kv_heads, dim = c.shape.head_dim;
    if (paired) {
      k.push_back(c.k[block].view({heads, dim / 2, size, 2}).select(2, at).reshape({heads, dim}));
      v.push_back(c.v[block].view({heads, size / 2, dim, 2}).select(1, at / 2).select(2, at % 2));
    } else {
      k.push_back(c.k[block].select(2, at));
      v.push_back(c.v[block].select(1, at));
    }
  }
  return {at::stack(k), at::stack(v)};
}

inline at::Tensor RotaryTable(int64_t positions, int64_t dim) {
  const at::Tensor angle = at::arange(positions).to(at::kFloat).view({-1, 1}) *
                           at::pow(10000.0, at::arange(dim / 2) * (-2.0 / dim));
  return at::cat({angle.cos(), angle.sin()}, 1).contiguous();
}

inline Norm Rms(int64_t width, int32_t group) {
  Norm norm;
  norm.numbers.stat = NormStat::kMeanSquare;
  norm.numbers.eps = 1e-5f;
  norm.numbers.group_width = group;
  norm.gamma = at::randn({width}) * 0.3 + 1.0;
  return norm;
}

}  // namespace normserve::kernels
