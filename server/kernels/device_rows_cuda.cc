// SPDX-License-Identifier: Apache-2.0
// The row kernels on a CUDA device, put on the current stream.
#include <c10/util/Exception.h>

#include <string>

#include "kernels/cuda_rows.h"
#include "kernels/cuda_stream.h"
#include "kernels/device_rows.h"
#include "kernels/norm_math.h"

namespace normserve::kernels {

namespace {

// Elements under one statistic must fit one block's registers.
void CheckGroup(const RowNorm& norm, int64_t width) {
  const bool reduces = NeedsMean(norm.numbers) || MeasuresStat(norm.numbers);
  const int64_t group = norm.numbers.group_width > 0 ? norm.numbers.group_width : width;
  TORCH_CHECK(!reduces || group <= kMostGroup, "a norm over ", group, " elements; on this device allowed: at most ",
              kMostGroup);
}

}  // namespace

void RunNormRows(const NormRows& args, int64_t rows) {
  CheckGroup(args.norm, args.width);
  if (rows > 0) NormRowsCuda(args, rows, CurrentStream());
}

void RunResidualRows(const ResidualRows& args, int64_t rows) {
  if (args.has_out) CheckGroup(args.out, args.width);
  if (args.has_next) CheckGroup(args.next, args.width);
  if (rows > 0) ResidualRowsCuda(args, rows, CurrentStream());
}

void RunActivateRows(const ActivateRows& args, int64_t rows) {
  if (args.has_gate_norm) CheckGroup(args.gate, args.width);
  if (args.has_up_norm) CheckGroup(args.up, args.width);
  if (rows > 0) ActivateRowsCuda(args, rows, CurrentStream());
}

void RunQkvRows(const QkvRows& args, int64_t tokens) {
  TORCH_CHECK(!args.int8_cache, "k_cache: int8 is for the CPU only");
  if (tokens > 0) QkvRowsCuda(args, tokens, CurrentStream());
}

void RunAttentionRows(const AttentionRows& args, int64_t tokens, int64_t max_context) {
  TORCH_CHECK(!args.int8_cache, "k_cache: int8 is for the CPU only");
  if (tokens == 0) return;
  const int64_t floats = AttentionScratchFloats(args, tokens, max_context);
  // Without any, blocks merge their splits themselves.
  at::Tensor scratch;
  if (floats > 0) scratch = StreamScratch({floats}, at::kFloat);
  AttentionRowsCuda(args, tokens, max_context, floats > 0 ? scratch.data_ptr<float>() : nullptr,
                    CurrentStream());
}

void RunAttentionTiles(const AttentionTileArgs& args) {
  const std::string fault = AttentionTilesCuda(args, CurrentStream());
  TORCH_CHECK(fault.empty(), "attention by tiles: ", fault);
}

const int32_t* HostInts(const at::Tensor& t) {
#if defined(NORMSERVE_CUDA_EMULATED)
  // What they hold while work is recorded is not what it will run on.
  return Recording() ? nullptr : t.const_data_ptr<int32_t>();
#else
  return nullptr;
#endif
}

}  // namespace normserve::kernels
