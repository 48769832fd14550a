// SPDX-License-Identifier: Apache-2.0
// What crosses the dispatcher, on both of its sides: the operators' C++ signatures, a norm as an array
// of numbers, and the argument checks that the glue files share. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "kernels/norm_rows.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {

using MaybeTensor = std::optional<at::Tensor>;
using Numbers = at::ArrayRef<double>;  // NormNumbers in order of declaration; empty = no norm

using NormSignature = void(const at::Tensor& x, Numbers norm, const MaybeTensor& gamma,
                           const MaybeTensor& beta, const MaybeTensor& row_stat,
                           const at::Tensor& y);
using ResidualNormSignature = void(const at::Tensor& h, const at::Tensor& delta, Numbers out_norm,
                                   const MaybeTensor& out_gamma, const MaybeTensor& out_beta,
                                   Numbers next_norm, const MaybeTensor& next_gamma,
                                   const MaybeTensor& next_beta, const MaybeTensor& row_stat,
                                   const MaybeTensor& y);
using LinearResidualNormSignature =
    void(const at::Tensor& x, const at::Tensor& panels, int64_t format, int64_t out_features,
         int64_t rows_per_product, const MaybeTensor& bias, const at::Tensor& delta, const at::Tensor& h, Numbers next_norm,
         const MaybeTensor& next_gamma, const MaybeTensor& next_beta, const MaybeTensor& row_stat,
         const MaybeTensor& y);
using QkvSignature = void(const at::Tensor& qkv, Numbers q_norm, const MaybeTensor& q_gamma,
                          const MaybeTensor& q_beta, Numbers k_norm, const MaybeTensor& k_gamma,
                          const MaybeTensor& k_beta, Numbers v_norm, const MaybeTensor& v_gamma,
                          const MaybeTensor& v_beta, const MaybeTensor& cos_sin, int64_t pairs,
                          const at::Tensor& positions, const at::Tensor& slots, int64_t heads,
                          int64_t kv_heads, int64_t head_dim, int64_t block_size,
                          const at::Tensor& k_cache, const at::Tensor& v_cache);
using AttentionSignature = void(const at::Tensor& qkv, const at::Tensor& k_cache,
                                const at::Tensor& v_cache, const at::Tensor& block_tables,
                                const at::Tensor& token_sequence, const at::Tensor& positions,
                                const MaybeTensor& tiles, const MaybeTensor& tile_work,
                                double scale, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                int64_t block_size, const at::Tensor& out);
using ActivateSignature = void(const at::Tensor& x, int64_t activation, Numbers gate_norm,
                               const MaybeTensor& gate_gamma, const MaybeTensor& gate_beta,
                               Numbers up_norm, const MaybeTensor& up_gamma,
                               const MaybeTensor& up_beta, const at::Tensor& y);
using PackWeightSignature = at::Tensor(const at::Tensor& weight, int64_t format, bool gate_up);
using LinearSignature = void(const at::Tensor& x, const at::Tensor& panels, int64_t format,
                             int64_t out_features, int64_t rows_per_product, const MaybeTensor& bias,
                             const at::Tensor& y);
using LinearGateSignature = void(const at::Tensor& x, const at::Tensor& panels, int64_t format,
                                 int64_t out_features, int64_t rows_per_product, const MaybeTensor& bias,
                                 const at::Tensor& gate_up, const at::Tensor& y);
using EmbedSignature = void(const at::Tensor& ids, const at::Tensor& panels, int64_t format,
                            int64_t rows, double scale, const MaybeTensor& positions,
                            const MaybeTensor& positions_table, const at::Tensor& out);
using GatherRowsSignature = void(const at::Tensor& x, const at::Tensor& rows,
                                 const at::Tensor& out);

using NumberArray = std::array<double, 9>;
NumberArray ToArray(const NormNumbers& numbers);

// Checks and unpacks a norm over rows of `width`; gamma and beta must outlive the result.
RowNorm ToRowNorm(const char* what, Numbers numbers, const MaybeTensor& gamma,
                  const MaybeTensor& beta, int64_t width);

// TORCH_CHECK failures that name the argument: an activation matrix [rows, width] (width < 0: any),
// a packed float32 vector, an int32 vector.
RowType CheckActivations(const char* name, const at::Tensor& t, int64_t rows, int64_t width);
const float* CheckFloats(const char* name, const at::Tensor& t, int64_t count);
const int32_t* CheckInts(const char* name, const at::Tensor& t, int64_t count);
// row_stat of a norm over `rows` rows: null where it is absent; it must be there to be read.
float* CheckRowStat(const std::optional<at::Tensor>& row_stat, const NormNumbers& numbers,
                    int64_t rows);

// Runs body(begin, end) over [0, count) on the current pool. `item_cost` is about the number of
// elements that one item touches: small work stays on the calling thread, where it is faster.
template <class Body>
void ForItems(int64_t count, int64_t grain, int64_t item_cost, const Body& body) {
  constexpr int64_t kWorthWaking = 32 * 1024;
  if (count == 0) return;
  ThreadPool* pool = CurrentPool();
  if (pool == nullptr || count * item_cost < kWorthWaking) return body(int64_t{0}, count);
  pool->ParallelFor(count, grain, std::cref(body));  // a reference: std::function allocates nothing
}

}  // namespace normserve::kernels
