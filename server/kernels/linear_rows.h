// SPDX-License-Identifier: Apache-2.0
// Plain-pointer arguments of Linear on the CPU, and of its packing; no torch here.
//
// float32 and float16 weights lie in panels of 16 outputs, [panels, k, 16], bfloat16 ones in panels of pairs of inputs,
// [panels, pairs, 16, 2], a last odd input's neighbour being 0: every output is one chain of float32 multiply-adds
// over the inputs (kBFloat16Dot: over the pairs) in order, and no horizontal sum exists. Quantised weights lie in
// panels of groups of 32 inputs: a row's inputs are rounded to integers of 16 bits (8 where HasVnni) with one float32
// scale per group, its largest being 32767 (127); a group's products are summed exactly in 32-bit integers, and the
// groups, scaled, are one chain of float32 multiply-adds in order. So a row's bits depend on nothing but
// that row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/norm_rows.h"
#include "kernels/read_ahead.h"
#include "kernels/weight_format.h"

namespace normserve::kernels {

// Where a product goes. Each gives the bits of the plain product followed by what it stands for.
enum class LinearExit {
  kStore,  // y = x W^T + bias
  kAdd,    // y += x W^T + bias, the product rounded as y is before it is added
  kGate,   // y = silu(gate) * up, y [rows, n / 2]: outputs of the weight come as 8 of gate and 8 of up in turns
};

// Outputs of gate, and then of up, that a weight packed for kGate has together: a panel is half the one and half the
// other, so that every tile has both, whatever its height. Needs n to be a multiple of 16.
inline constexpr int64_t kGateRun = kPanel / 2;

struct LinearRows {
  RowType x_type = RowType::kFloat32;
  WeightFormat format = WeightFormat::kFloat32;
  RowType y_type = RowType::kFloat32;
  const void* x = nullptr;  // [rows, k]
  int64_t x_stride = 0;
  const void* panels = nullptr;  // [ceil(n / 16)] panels, or [ceil(n / 16), groups] of Int8Group, Int4Group
  const float* bias = nullptr;   // [n], or null; for kGate gate's n / 2 and then up's
  void* y = nullptr;             // [rows, n], [rows, n / 2] for kGate
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  LinearExit exit = LinearExit::kStore;
  ReadAhead* read_ahead = nullptr;  // null: there is nothing to ask for but weights
  // Whether float kernels use vectors of 128 bits where they could use 256. Never changes a result.
  bool narrow = false;
};

// Whether this processor splits 256-bit instructions, so that 128-bit ones are as wide and widening to
// float32 is cheaper (AMD's first Zen; measured there: a prompt of 64 tokens 1.23x).
bool SplitsWideVectors();

// Rows are handled in tiles of nearly equal height; a tile's inputs are interleaved, so that the kernel
// reads them in one stream: [k, height] float32, [pairs, height, 2] bfloat16 (kBFloat16Dot), or [groups] of
// QuantisedInputs<height> (linear_vnni.cc has its own).
struct RowTiles {
  int64_t count = 0;
  int64_t first_row(int64_t tile, int64_t rows) const { return tile * rows / count; }
};
RowTiles TilesOf(int64_t rows);

// A tile's inputs are interleaved in so many parts, each some of its inputs: there are few tiles, and threads to share
// them.
inline constexpr int64_t kTileParts = 4;

// One group of inputs of a tile: x = scale * q, and, for kInt4 only, sum = scale * (q0 + q1 + ...), which the
// least value of a 4-bit group is multiplied with. A group with a NaN or Inf has scale NaN and q 0; one with
// nothing above 1e-30 is taken as zeros.
template <int64_t kHeight>
struct QuantisedInputs {
  int16_t q[kPairs][kHeight][2];
  float scale[kHeight];
  float sum[kHeight];
};

// Floats that the interleaved inputs of `rows` rows take.
constexpr int64_t PackedInputFloats(WeightFormat format, int64_t rows, int64_t k) {
  constexpr int64_t kGroupBytes = sizeof(QuantisedInputs<1>);
  if (format == WeightFormat::kBFloat16Dot) return rows * PairsOf(k);
  return IsQuantised(format) ? rows * GroupsOf(k) * (kGroupBytes / 4) : rows * k;
}

// Panels that one kernel call takes at once for these rows: the grain for splitting the work.
int64_t PanelsAtOnce(int64_t rows, bool narrow);

// Interleaves parts [begin, end) of the inputs into `packed`; part = tile * kTileParts + part of the tile.
void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed);

// Outputs of panels [begin, end) for all rows, from the packed inputs.
void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

// The same for kFloat16, whose inputs and panels at once are those above.
void Float16PanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

// The same three for kBFloat16Dot, where HasBFloat16Dot.
int64_t BFloat16PanelsAtOnce(int64_t rows);
void PackBFloat16InputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed);
void BFloat16PanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

// The same three for quantised weights, with inputs of 16 bits.
int64_t QuantisedPanelsAtOnce(int64_t rows);
void QuantiseInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed);
void QuantisedPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

// The same three for quantised weights where HasVnni, with inputs of 8 bits.
int64_t VnniPanelsAtOnce(int64_t rows);
void VnniInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed);
void VnniPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end);

// Quantises one panel: weights [groups * 32, 16] float32, inputs beyond the last being 0. The result is
// the same on every SIMD target. Scale of an 8-bit group: largest magnitude / 127, rounded up to
// bfloat16. A 4-bit group: the best in squared error of some shrunken ranges, each refitted by least
// squares. A NaN or Inf makes its group's scale NaN.
void QuantisePanelCpu(const float* weights, int64_t groups, Int8Group* panel);
void QuantisePanelCpu(const float* weights, int64_t groups, Int4Group* panel);

}  // namespace normserve::kernels
