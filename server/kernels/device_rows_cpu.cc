// SPDX-License-Identifier: Apache-2.0
// The row kernels on the CPU, shared out over the current thread pool.
#include <c10/util/Exception.h>

#include "kernels/device_rows.h"
#include "kernels/op_args.h"

namespace normserve::kernels {

void RunNormRows(const NormRows& args, int64_t rows) {
  ForItems(rows, 1, args.width,
           [&](int64_t begin, int64_t end) { NormRowsCpu(args, begin, end); });
}

void RunResidualRows(const ResidualRows& args, int64_t rows) {
  ForItems(rows, 1, 2 * args.width,
           [&](int64_t begin, int64_t end) { ResidualRowsCpu(args, begin, end); });
}

void RunActivateRows(const ActivateRows& args, int64_t rows) {
  ForItems(rows, 1, (args.gated ? 4 : 2) * args.width,
           [&](int64_t begin, int64_t end) { ActivateRowsCpu(args, begin, end); });
}

namespace {
void CheckPairs(RowType cache_type, bool int8_cache, int64_t head_dim) {
  TORCH_CHECK((cache_type == RowType::kFloat32 && !int8_cache) || head_dim % 2 == 0, "head_dim: ", head_dim,
              " is odd, a bfloat16 or int8 cache needs pairs");
}
}  // namespace

void RunQkvRows(const QkvRows& args, int64_t tokens) {
  CheckPairs(args.cache_type, args.int8_cache, args.head_dim);
  TORCH_CHECK(!args.keys_by_position, "k_cache: on the CPU keys lie transposed");
  ForItems(tokens, 1, (args.heads + 2 * args.kv_heads) * args.head_dim,
           [&](int64_t begin, int64_t end) { QkvRowsCpu(args, begin, end); });
}

void RunAttentionRows(const AttentionRows& args, int64_t tokens, int64_t) {
  CheckPairs(args.cache_type, args.int8_cache, args.head_dim);
  int64_t positions = 0;
  for (int64_t t = 0; t < tokens; ++t) positions += args.positions[t] + 1;
  // One item is a grain: several per chunk would be uneven, since later positions cost more.
  const int64_t mean_cost = tokens == 0 ? 0 : positions / tokens * args.head_dim * 2;
  ForItems(tokens * args.kv_heads, 1, mean_cost,
           [&](int64_t begin, int64_t end) { AttentionRowsCpu(args, begin, end); });
}

void RunAttentionTiles(const AttentionTileArgs&) {
  TORCH_CHECK(false, "tiles: not on the CPU");
}

const int32_t* HostInts(const at::Tensor& t) { return t.const_data_ptr<int32_t>(); }

}  // namespace normserve::kernels
