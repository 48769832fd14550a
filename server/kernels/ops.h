// SPDX-License-Identifier: Apache-2.0
// The only door to the kernels: typed wrappers of the `normserve::` operators, each dispatched by
// PyTorch to the device of its tensors. Nothing here allocates; callers own every output.
//
// Dtypes: "act" is the activation dtype, float32 or bfloat16, one for a whole model. "cache" is that of
// keys and values: act, or under float32 activations bfloat16 or, on the CPU, int8. Statistics, norm parameters
// (gamma, beta, biases) and logits are float32 always. Reads are widened to float32, all arithmetic is float32, and
// results are rounded to nearest even on store.
//
// Laws (each tested): a row's result depends on that row's inputs alone, never on the number of rows
// beside it (on CUDA, Linear of more than 16 rows keeps this under PackedWeight::rows_per_product only); the same path serves prefill and decode; AddNorm stores h rounded and normalises the
// rounded h; NormAdd rounds once, after the addition. Last strides are 1, row strides are free:
// anything else is a TORCH_CHECK failure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/norm_rows.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {

// A norm with its tensors. `gamma` and `beta` are float32 [width], or undefined for 1 and 0.
struct Norm {
  NormNumbers numbers;
  at::Tensor gamma;
  at::Tensor beta;
};
using OptionalNorm = std::optional<Norm>;  // absent = no op at this site

// What follows the first MLP projection.
enum class Activation : int32_t {
  kSiluGate = 0,  // silu(gate) * up, input [tokens, 2F] = gate | up
  kGeluErf = 1,   // exact GELU, input [tokens, F]
};

// Which elements of a head form a rotary pair.
enum class RotaryPairs : int32_t {
  kNone = 0,         // no rotary embedding (learned positions)
  kHalfSplit = 1,    // (i, i + D/2), Hugging Face Llama
  kInterleaved = 2,  // (2i, 2i + 1), torchtitan
};

// y = N(x). x [tokens, width] act, y [tokens, width] act. row_stat [tokens] float32: written where
// the norm measures a statistic, read where it is carried.
void NormOp(const at::Tensor& x, const Norm& norm, at::Tensor& row_stat, at::Tensor& y);

// h += N_out(delta); y = N_next(h). Absent N_out: h += delta (AddNorm). Absent N_next: y is not
// touched and may be undefined (NormAdd, or a plain residual add). Both present: NormAddNorm.
// N_out never reads or writes row_stat; N_next does as in NormOp.
// h [tokens, width] act, updated in place; delta [tokens, width] act.
void ResidualNorm(at::Tensor& h, const at::Tensor& delta, const OptionalNorm& out_norm,
                  const OptionalNorm& next_norm, at::Tensor& row_stat, at::Tensor& y);

// Layout of the fused projection and of one layer's key-value cache.
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 0;  // tokens per block, a multiple of 16
};

// The three norms of the q, k and v projections (SimpleNorm, QK-norm); group_width 0 is the whole
// projection (heads * head_dim, or kv_heads * head_dim).
struct QkvNorms {
  OptionalNorm q, k, v;
};

// Normalises q, k, v where asked, rotates q and k, leaves q in place and writes k and v to the cache.
//   qkv       [tokens, (heads + 2 kv_heads) * head_dim] act, q | k | v; its q part is overwritten
//   cos_sin   [positions, head_dim] float32: head_dim/2 cosines, then head_dim/2 sines; undefined
//             for kNone
//   positions [tokens] int32
//   slots     [tokens] int32: block * block_size + offset in the block; a negative slot writes nothing
//   k_cache   [blocks, kv_heads, head_dim, block_size] cache (keys transposed within a block). Where it is the
//             transposition of packed [blocks, kv_heads, block_size, head_dim], keys lie by position, for
//             attention by tiles. A bfloat16 cache of the CPU has the elements of a block in an order of its own,
//             by pairs (qkv_rows.h), and needs an even head_dim; an int8 one is [blocks, kv_heads, bytes], as said there
//   v_cache   [blocks, kv_heads, block_size, head_dim] cache
void QkvNormRotaryWrite(at::Tensor& qkv, const QkvNorms& norms, const at::Tensor& cos_sin,
                        RotaryPairs pairs, const at::Tensor& positions, const at::Tensor& slots,
                        const AttentionShape& shape, at::Tensor& k_cache, at::Tensor& v_cache);

// Causal attention of each token to positions 0..positions[token] of its own sequence, through the
// block table. Softmax in float32; sums run in position order. Over an int8 cache queries, and the scores' weights
// times their values' scales, are rounded to 16 bits, and sums of products are exact.
//   qkv            as above (its q part is read)
//   token_sequence [tokens] int32: row of block_tables
//   block_tables   [sequences, max_blocks] int32
//   tiles          [AttentionTilesLayout::ints] int32: attention by tiles (attention_tiles.h), where the device has
//                  it (Accelerator::TileAttentionFault) and keys lie by position; undefined: by the kernels' own way.
//                  Rows that no tile names are padding: what they get means nothing
//   tile_work      with tiles: at least TileParts::bytes bytes, overwritten
//   out            [tokens, heads * head_dim] act
void PagedAttention(const at::Tensor& qkv, const at::Tensor& k_cache, const at::Tensor& v_cache,
                    const at::Tensor& block_tables, const at::Tensor& token_sequence,
                    const at::Tensor& positions, const at::Tensor& tiles, const at::Tensor& tile_work,
                    float scale, const AttentionShape& shape, at::Tensor& out);

// y = act(N_gate(gate)) * N_up(up) for kSiluGate, y = act(N_gate(x)) for kGeluErf (up absent).
// x [tokens, 2F] or [tokens, F] act; y [tokens, F] act. group_width 0 is F.
void Activate(const at::Tensor& x, Activation activation, const OptionalNorm& gate_norm,
              const OptionalNorm& up_norm, at::Tensor& y);

// A linear layer's weight [N, K] in the kernels' own layout, opaque outside this folder: on CPU panels of
// 16 outputs, [ceil(N / 16), K, 16] for float32, [ceil(N / 16), ceil(K / 2), 32] for bfloat16 and
// [ceil(N / 16), ceil(K / 32), bytes of a group] for quantised weights; on CUDA [N, K] or [N, bytes of a row] (see weight_format.h).
// LinearGate's lie in an order of their own.
enum class WeightUse { kLinear, kGate };
struct PackedWeight {
  at::Tensor panels;
  WeightFormat format = WeightFormat::kFloat32;
  WeightUse use = WeightUse::kLinear;
  int64_t out_features = 0;  // N
  int64_t in_features = 0;   // K
  // 0: a product takes as many rows as it is given. n > 0: exactly n at a time, of which their number must be a
  // multiple: a library that chooses its order of summation by the number of rows then always chooses the same.
  // Our own kernels, those of the CPU among them, need no such thing.
  int64_t rows_per_product = 0;
};

// Packs weight [N, K] (float32, bfloat16 or float16, any strides).
PackedWeight PackWeight(const at::Tensor& weight, WeightFormat format, WeightUse use = WeightUse::kLinear);

// y = x W^T + bias. x [tokens, K] act, y [tokens, N] act or float32, bias [N] float32 or undefined.
// On CPU: floating-point weights: each output is one float32 sum over k = 0..K-1 in order (kBFloat16Dot: of inputs
// rounded to bfloat16, over pairs of them). Quantised weights:
// inputs are rounded to 16 bits (8 with AVX512-VNNI) per group of 32, whose products are summed exactly; the groups are one
// float32 sum in order. Either way whatever the number of rows.
void Linear(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias, at::Tensor& y);

// Linear and then Activate's kSiluGate without norms: gate_up = x W^T + bias, W [2F, K] = gate | up packed for
// WeightUse::kGate; y = silu(gate) * up. The same bits as the two; a device may make it in one pass, and then leaves
// gate_up, [tokens, 2F] act, as it was. y [tokens, F] act is not x.
void LinearGate(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias, at::Tensor& gate_up,
                at::Tensor& y);

// Linear and then ResidualNorm without a norm on its way: delta = x W^T + bias; h += delta; y = N_next(h). The
// same bits as the two; a device may add to h where the product is made (a GPU: where the next norm needs no statistic
// of h, as BHyT's second point and DyT, and makes y, too, in that pass), and then leaves delta, [tokens, N] act, as it was. Neither h nor y is x.
void LinearResidualNorm(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias,
                        at::Tensor& delta, at::Tensor& h, const OptionalNorm& next_norm,
                        at::Tensor& row_stat, at::Tensor& y);

// out[t] = scale * W[ids[t]] (+ positions_table[positions[t]]). ids [tokens] int32; `table` is packed
// as for Linear, so that a tied head needs no second copy; positions_table [positions, hidden]
// float32 or undefined; out [tokens, hidden] act.
void Embed(const at::Tensor& ids, const PackedWeight& table, float scale,
           const at::Tensor& positions, const at::Tensor& positions_table, at::Tensor& out);

// out[r] = x[rows[r]]. rows [R] int32.
void GatherRows(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out);

// Ok when every operator has a kernel for the device (checked once at start).
// `device` is "CPU" or "CUDA". Returns the names that lack one, empty when complete.
std::vector<std::string> MissingKernels(at::DeviceType device);

}  // namespace normserve::kernels
