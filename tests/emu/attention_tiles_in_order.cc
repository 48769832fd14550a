// SPDX-License-Identifier: Apache-2.0
// What stands in for FlashInfer's kernel, which cannot run here: a loop that takes from the tiles' arrays what that
// kernel takes from them, so that the arrays, the layout of the cache and the way through the server are tested.
// Of FlashInfer's own code it proves nothing.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda_rows.h"
#include "kernels/vectors.cuh"

namespace normserve::kernels {
namespace {

template <typename T>
class TileLoop {
 public:
  explicit TileLoop(const AttentionTileArgs& args) : a_(args.rows), args_(args), at_(args.shape) {}

  void Run() const {
    for (int64_t tile = 0; tile < at_.tiles; ++tile) {
      if (reinterpret_cast<const uint8_t*>(args_.tiles + at_.valid)[tile] != 0) RunTile(tile);
    }
    if (args_.partial != nullptr) {
      for (int64_t token = 0; token < args_.shape.tokens; ++token) Merge(token);
    }
  }

 private:
  int64_t Int(int64_t array, int64_t i) const { return args_.tiles[array + i]; }

  void RunTile(int64_t tile) const {
    const int64_t sequence = Int(at_.sequence, tile), group = a_.heads / a_.kv_heads;
    const int64_t first = Int(at_.query_begin, sequence), queries = Int(at_.query_begin, sequence + 1) - first;
    const int64_t table = Int(at_.table_begin, sequence), entries = Int(at_.table_begin, sequence + 1) - table;
    const int64_t context = (entries - 1) * a_.block_size + Int(at_.last_block, sequence);
    const int64_t keys = Int(at_.split_keys, 0), split = Int(at_.split, tile), splits = (context + keys - 1) / keys;
    for (int64_t row = Int(at_.query_tile, tile) * kTileRows, end = row + kTileRows; row < end; ++row) {
      const int64_t query = row / group;
      if (query >= queries) return;
      const int64_t visible = context - queries + query + 1;
      const int64_t to = args_.partial == nullptr ? visible : std::min(visible, (split + 1) * keys);
      const int64_t out = args_.partial == nullptr ? Int(at_.partial_begin, sequence) + query
                                                   : Int(at_.partial_begin, sequence) + query * splits + split;
      for (int64_t kv_head = 0; kv_head < a_.kv_heads; ++kv_head) {
        Attend(first + query, kv_head, kv_head * group + row % group, table, split * keys, to, out);
      }
    }
  }

  // One query's weighted sum of values at positions [from, to), to row `out` of the results or of their parts.
  void Attend(int64_t token, int64_t kv_head, int64_t head, int64_t table, int64_t from, int64_t to,
              int64_t out) const {
    const T* q = static_cast<const T*>(a_.qkv) + token * a_.qkv_stride + head * a_.head_dim;
    const auto at = [&](const void* cache, int64_t position) {
      const int64_t block = a_.block_tables[table + position / a_.block_size];
      const int64_t row = (block * a_.kv_heads + kv_head) * a_.block_size + position % a_.block_size;
      return static_cast<const T*>(cache) + row * a_.head_dim;
    };
    std::vector<double> weights;
    double max = -INFINITY, sum = 0;
    for (int64_t p = from; p < to; ++p) {
      const T* key = at(a_.k_cache, p);
      double score = 0;
      for (int64_t d = 0; d < a_.head_dim; ++d) score += double{ToFloat(q[d])} * ToFloat(key[d]);
      weights.push_back(score * a_.scale);
      max = std::max(max, weights.back());
    }
    for (double& w : weights) sum += w = std::exp(w - max);
    const bool whole = args_.partial == nullptr;
    T* to_row = static_cast<T*>(whole ? a_.out : args_.partial) + (out * a_.heads + head) * a_.head_dim;
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      double v = 0;
      for (int64_t p = from; p < to; ++p) v += weights[static_cast<size_t>(p - from)] * ToFloat(at(a_.v_cache, p)[d]);
      to_row[d] = FromFloat<T>(static_cast<float>(to > from ? v / sum : 0));
    }
    if (whole) return;
    args_.partial_stats[out * a_.heads + head] = to > from ? static_cast<float>(max + std::log(sum)) : -INFINITY;
  }

  void Merge(int64_t token) const {
    const int64_t begin = Int(at_.merge_begin, token), end = Int(at_.merge_begin, token + 1);
    for (int64_t head = 0; head < a_.heads; ++head) {
      double max = -INFINITY, sum = 0;
      for (int64_t i = begin; i < end; ++i) max = std::max<double>(max, args_.partial_stats[i * a_.heads + head]);
      for (int64_t i = begin; i < end; ++i) sum += std::exp(args_.partial_stats[i * a_.heads + head] - max);
      for (int64_t d = 0; d < a_.head_dim; ++d) {
        double v = 0;
        for (int64_t i = begin; i < end; ++i) {
          const double weight = std::exp(args_.partial_stats[i * a_.heads + head] - max) / sum;
          v += weight * ToFloat(static_cast<const T*>(args_.partial)[(i * a_.heads + head) * a_.head_dim + d]);
        }
        static_cast<T*>(a_.out)[(token * a_.heads + head) * a_.head_dim + d] = FromFloat<T>(static_cast<float>(v));
      }
    }
  }

  const AttentionRows& a_;
  const AttentionTileArgs& args_;
  const AttentionTilesLayout at_;
};

// One thread; a kernel so that it is recorded and counted as one.
__global__ void TilesInOrderKernel(AttentionTileArgs args) {
  if (args.rows.type == RowType::kBFloat16) return TileLoop<__nv_bfloat16>(args).Run();
  TileLoop<float>(args).Run();
}

}  // namespace

// More than FlashInfer takes: the models of the tests have other heads, and are exact in float32.
std::string AttentionTilesFault(RowType type, int64_t) {
  return type == RowType::kFloat16 ? "float16 is not there" : "";
}

std::string AttentionTilesCuda(const AttentionTileArgs& args, CudaStream stream) {
  if (args.rows.cache_type != args.rows.type) return "the cache has another type";
  if (args.rows.out_stride != args.rows.heads * args.rows.head_dim) return "out is not packed";
  launch(TilesInOrderKernel, dim3(1), dim3(1), 0, stream, args);
  return "";
}

}  // namespace normserve::kernels
