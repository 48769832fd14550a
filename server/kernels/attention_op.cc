// SPDX-License-Identifier: Apache-2.0
// Glue of QkvNormRotaryWrite and PagedAttention: argument contracts and pointers, the same for every device.
// What lies in index tensors is checked where the host can read them.
#include <c10/util/Exception.h>

#include "kernels/attention_tiles.h"
#include "kernels/device_rows.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"

namespace normserve::kernels {
namespace {

void CheckShape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size) {
  TORCH_CHECK(kv_heads > 0 && heads > 0 && heads % kv_heads == 0, "heads: ", heads,
              " is no multiple of kv_heads ", kv_heads);
  TORCH_CHECK(head_dim > 0 && head_dim <= kMaxHeadDim, "head_dim: ", head_dim, ", allowed 1..",
              kMaxHeadDim);
  TORCH_CHECK(block_size > 0 && block_size % 16 == 0, "block_size: ", block_size,
              " is no multiple of 16");
}

// The cache's type: that of the activations, or bfloat16 under float32 ones.
RowType CheckCache(const char* name, const at::Tensor& cache, RowType activations, int64_t kv_heads,
                   int64_t rows, int64_t columns) {
  TORCH_CHECK(cache.dim() == 4 && cache.is_contiguous() && cache.size(1) == kv_heads &&
                  cache.size(2) == rows && cache.size(3) == columns,
              name, ": expected packed [blocks, ", kv_heads, ", ", rows, ", ", columns, "], got ",
              cache.sizes());
  if (cache.scalar_type() == at::kBFloat16) return RowType::kBFloat16;
  TORCH_CHECK(cache.scalar_type() == at::kFloat && activations == RowType::kFloat32, name,
              ": expected the dtype of qkv, or bfloat16, got ", cache.scalar_type());
  return RowType::kFloat32;
}

// Whether keys lie by position: what CheckCache takes is then the transposition of `cache`.
bool KeysByPosition(const at::Tensor& cache) {
  return cache.dim() == 4 && !cache.is_contiguous() && cache.transpose(2, 3).is_contiguous();
}

// What both caches hold.
struct CacheKind {
  RowType type = RowType::kFloat32;  // where they are no bytes
  bool int8 = false;
};

void CheckBytes(const char* name, const at::Tensor& cache, int64_t kv_heads, int64_t bytes) {
  TORCH_CHECK(cache.scalar_type() == at::kChar && cache.dim() == 3 && cache.is_contiguous() &&
                  cache.size(1) == kv_heads && cache.size(2) == bytes,
              name, ": expected packed int8 [blocks, ", kv_heads, ", ", bytes, "], got ", cache.scalar_type(), " ",
              cache.sizes());
}

CacheKind CheckCaches(const at::Tensor& k_cache, const at::Tensor& v_cache, RowType activations, int64_t kv_heads,
                      int64_t head_dim, int64_t block_size) {
  if (k_cache.scalar_type() == at::kChar) {
    TORCH_CHECK(activations == RowType::kFloat32, "k_cache: int8 goes with a float32 qkv only");
    const int64_t bytes = block_size * (head_dim + static_cast<int64_t>(sizeof(float)));
    CheckBytes("k_cache", k_cache, kv_heads, bytes);
    CheckBytes("v_cache", v_cache, kv_heads, bytes);
    return {RowType::kFloat32, true};
  }
  const bool by_position = KeysByPosition(k_cache);
  const RowType type =
      by_position ? CheckCache("k_cache", k_cache.transpose(2, 3), activations, kv_heads, block_size, head_dim)
                  : CheckCache("k_cache", k_cache, activations, kv_heads, head_dim, block_size);
  TORCH_CHECK(CheckCache("v_cache", v_cache, activations, kv_heads, block_size, head_dim) == type,
              "v_cache: expected the dtype of k_cache");
  return {type, false};
}

void QkvOp(const at::Tensor& qkv, Numbers q_norm, const MaybeTensor& q_gamma,
            const MaybeTensor& q_beta, Numbers k_norm, const MaybeTensor& k_gamma,
            const MaybeTensor& k_beta, Numbers v_norm, const MaybeTensor& v_gamma,
            const MaybeTensor& v_beta, const MaybeTensor& cos_sin, int64_t pairs,
            const at::Tensor& positions, const at::Tensor& slots, int64_t heads, int64_t kv_heads,
            int64_t head_dim, int64_t block_size, const at::Tensor& k_cache,
            const at::Tensor& v_cache) {
  CheckShape(heads, kv_heads, head_dim, block_size);
  const int64_t tokens = qkv.size(0), width = (heads + 2 * kv_heads) * head_dim;
  QkvRows rows;
  rows.type = CheckActivations("qkv", qkv, tokens, width);
  const CacheKind cache = CheckCaches(k_cache, v_cache, rows.type, kv_heads, head_dim, block_size);
  rows.cache_type = cache.type;
  rows.int8_cache = cache.int8;
  rows.keys_by_position = KeysByPosition(k_cache);
  rows.qkv = qkv.data_ptr();
  rows.qkv_stride = qkv.stride(0);
  rows.positions = CheckInts("positions", positions, tokens);
  rows.slots = CheckInts("slots", slots, tokens);
  rows.heads = heads;
  rows.kv_heads = kv_heads;
  rows.head_dim = head_dim;
  rows.block_size = block_size;
  rows.k_cache = k_cache.data_ptr();
  rows.v_cache = v_cache.data_ptr();
  const auto set_norm = [&](int part, const char* name, Numbers numbers, const MaybeTensor& gamma,
                            const MaybeTensor& beta, int64_t part_heads) {
    rows.has_norm[part] = !numbers.empty();
    if (numbers.empty()) return;
    RowNorm& norm = rows.norm[part];
    norm = ToRowNorm(name, numbers, gamma, beta, part_heads * head_dim);
    const int64_t group = norm.numbers.group_width;
    TORCH_CHECK(group == 0 || group % head_dim == 0 || head_dim % group == 0, name,
                ": group_width ", group, " cuts heads of ", head_dim);
    TORCH_CHECK(norm.numbers.stat != NormStat::kCarried, name, ": no statistic to carry");
  };
  set_norm(0, "q_norm", q_norm, q_gamma, q_beta, heads);
  set_norm(1, "k_norm", k_norm, k_gamma, k_beta, kv_heads);
  set_norm(2, "v_norm", v_norm, v_gamma, v_beta, kv_heads);
  rows.rotary = static_cast<RotaryPairs>(pairs) != RotaryPairs::kNone;
  rows.interleaved = static_cast<RotaryPairs>(pairs) == RotaryPairs::kInterleaved;
  if (rows.rotary) {
    TORCH_CHECK(head_dim % 2 == 0, "head_dim: ", head_dim, " is odd, rotary needs pairs");
    TORCH_CHECK(cos_sin.has_value() && cos_sin->dim() == 2 && cos_sin->size(1) == head_dim,
                "cos_sin: expected [positions, ", head_dim, "]");
    rows.cos_sin = CheckFloats("cos_sin", *cos_sin, cos_sin->numel());
    rows.cos_sin_stride = head_dim;
    rows.cos_sin_positions = cos_sin->size(0);
    const int32_t* at = HostInts(positions);
    for (int64_t t = 0; at != nullptr && t < tokens; ++t) {
      TORCH_CHECK(at[t] >= 0 && at[t] < cos_sin->size(0), "positions[", t, "]: ", at[t],
                  " is outside the rotary table of ", cos_sin->size(0));
    }
  }
  const int64_t all_slots = k_cache.size(0) * block_size;
  TORCH_CHECK(k_cache.size(0) == v_cache.size(0), "v_cache: expected ", k_cache.size(0), " blocks");
  const int32_t* slot = HostInts(slots);
  for (int64_t t = 0; slot != nullptr && t < tokens; ++t) {
    TORCH_CHECK(slot[t] < all_slots, "slots[", t, "]: ", slot[t], ", the cache has ", all_slots);
  }
  RunQkvRows(rows, tokens);
}

void CheckTokens(const at::Tensor& token_sequence, const at::Tensor& positions, int64_t tables,
                 int64_t table_positions) {
  const int32_t* sequence = HostInts(token_sequence);
  const int32_t* position = HostInts(positions);
  if (sequence == nullptr || position == nullptr) return;
  for (int64_t t = 0; t < positions.numel(); ++t) {
    TORCH_CHECK(sequence[t] >= 0 && sequence[t] < tables, "token_sequence[", t, "]: ", sequence[t],
                ", there are ", tables, " block tables");
    TORCH_CHECK(position[t] >= 0 && position[t] < table_positions, "positions[", t, "]: ", position[t],
                " is outside the block table");
  }
}

void PagedAttentionOp(const at::Tensor& qkv, const at::Tensor& k_cache, const at::Tensor& v_cache,
                       const at::Tensor& block_tables, const at::Tensor& token_sequence,
                       const at::Tensor& positions, const MaybeTensor& tiles,
                       const MaybeTensor& tile_work, double scale, int64_t heads, int64_t kv_heads,
                       int64_t head_dim, int64_t block_size, const at::Tensor& out) {
  CheckShape(heads, kv_heads, head_dim, block_size);
  const int64_t tokens = qkv.size(0);
  AttentionRows rows;
  rows.type = CheckActivations("qkv", qkv, tokens, (heads + 2 * kv_heads) * head_dim);
  TORCH_CHECK(CheckActivations("out", out, tokens, heads * head_dim) == rows.type,
              "out: expected the dtype of qkv");
  const CacheKind cache = CheckCaches(k_cache, v_cache, rows.type, kv_heads, head_dim, block_size);
  rows.cache_type = cache.type;
  rows.int8_cache = cache.int8;
  TORCH_CHECK(KeysByPosition(k_cache) == tiles.has_value(),
              "k_cache: keys lie by position where attention goes by tiles, and only there");
  TORCH_CHECK(block_tables.dim() == 2, "block_tables: expected [sequences, max_blocks]");
  rows.qkv = qkv.const_data_ptr();
  rows.qkv_stride = qkv.stride(0);
  rows.k_cache = k_cache.const_data_ptr();
  rows.v_cache = v_cache.const_data_ptr();
  rows.block_tables = CheckInts("block_tables", block_tables, block_tables.numel());
  rows.block_tables_stride = block_tables.size(1);
  rows.token_sequence = CheckInts("token_sequence", token_sequence, tokens);
  rows.positions = CheckInts("positions", positions, tokens);
  rows.scale = static_cast<float>(scale);
  rows.heads = heads;
  rows.kv_heads = kv_heads;
  rows.head_dim = head_dim;
  rows.block_size = block_size;
  rows.out = out.data_ptr();
  rows.out_stride = out.stride(0);
  CheckTokens(token_sequence, positions, block_tables.size(0), block_tables.size(1) * block_size);
  if (!tiles.has_value()) return RunAttentionRows(rows, tokens, block_tables.size(1) * block_size);
  const AttentionTileShape shape{tokens, block_tables.size(0), block_tables.size(1), block_size, heads / kv_heads};
  const int32_t* ints = CheckInts("tiles", *tiles, AttentionTilesLayout(shape).ints);
  const TileParts parts(tokens, shape.splits(), heads, head_dim, qkv.element_size());
  TORCH_CHECK(tile_work.has_value() && tile_work->is_contiguous() && tile_work->scalar_type() == at::kByte &&
                  tile_work->numel() >= parts.bytes,
              "tile_work: expected at least ", parts.bytes, " packed bytes");
  TORCH_CHECK(parts.elements <= kMostPartElements, "tiles: ", parts.elements, " elements in parts; allowed: at most ",
              kMostPartElements);
  AttentionTileArgs args{rows, shape, ints};
  if (parts.rows > 0) {
    args.partial = tile_work->data_ptr<uint8_t>();
    args.partial_stats = reinterpret_cast<float*>(tile_work->data_ptr<uint8_t>() + parts.stats_at);
  }
  if (tokens > 0) RunAttentionTiles(args);
}

}  // namespace

NORMSERVE_IMPLEMENT_FOR(NORMSERVE_DISPATCH_KEY, m) {
  m.impl("qkv_norm_rotary_write", QkvOp);
  m.impl("paged_attention", PagedAttentionOp);
}

}  // namespace normserve::kernels
