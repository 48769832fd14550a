// SPDX-License-Identifier: Apache-2.0
// How a linear layer's weights are held in memory, and the memory layout of the quantised ones. No torch
// here; the same for every device.
#pragma once

#include <cstdint>

namespace normserve::kernels {

// kInt4 has kernels on the CPU only, and so has kFloat16, which CUDA packs as kFloat32; kFloat8 (e4m3) on CUDA only.
// kBFloat16Dot is kBFloat16 whose inputs may be rounded to bfloat16, too: a CPU that multiplies and adds pairs of them
// (HasBFloat16Dot) does so, at twice the speed of float32; elsewhere the two are the same.
enum class WeightFormat : int32_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kInt8 = 2,
  kInt4 = 3,
  kFloat8 = 4,
  kBFloat16Dot = 5,
  kFloat16 = 6
};

constexpr bool IsQuantised(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4 || format == WeightFormat::kFloat8;
}

// Outputs that lie beside each other: one vector load gives the weights of 16 outputs at one input.
inline constexpr int64_t kPanel = 16;

// Inputs that share one scale per output in a quantised weight, and those that lie beside each other in it.
inline constexpr int64_t kGroup = 32;
inline constexpr int64_t kQuad = 4;
inline constexpr int64_t kPairs = kGroup / 2;
inline constexpr int64_t kQuads = kGroup / kQuad;

// Where an input lies in its quad: so the bytes of even places are one pair of inputs, and those of odd places the
// next, and a kernel that multiplies 16 bits gets both by shifts; one that multiplies 8 takes the quad as it is.
constexpr int64_t PlaceInQuad(int64_t input) { return input % 4 / 2 + input % 2 * 2; }

constexpr int64_t PairsOf(int64_t inputs) { return (inputs + 1) / 2; }
constexpr int64_t GroupsOf(int64_t inputs) { return (inputs + kGroup - 1) / kGroup; }

// One group of one panel, scale and values together, so that a panel is one stream of memory. Scales are
// bfloat16, as bits. A last group that is not full is padded with zero weights.

// w = scale * q, q in -127..127. 8.5 bits per weight.
struct Int8Group {
  uint16_t scale[kPanel];
  int8_t q[kQuads][kPanel][kQuad];

  int Value(int64_t output, int64_t input) const { return q[input / kQuad][output][PlaceInQuad(input)]; }
  void Set(int64_t output, int64_t input, int value) {
    q[input / kQuad][output][PlaceInQuad(input)] = static_cast<int8_t>(value);
  }
};

// w = scale * q + least, q in 0..15. 5 bits per weight. Of two quads the earlier is in the low halves of bytes that
// lie as those of Int8Group, the later in the high ones.
struct Int4Group {
  uint16_t scale[kPanel];
  uint16_t least[kPanel];
  uint8_t q[kQuads / 2][kPanel][kQuad];

  int Value(int64_t output, int64_t input) const {
    const int both = q[input / (2 * kQuad)][output][PlaceInQuad(input)];
    return input / kQuad % 2 == 0 ? both & 15 : both >> 4;
  }
  // Once per value, of a group that was all zeros.
  void Set(int64_t output, int64_t input, int value) {
    uint8_t& both = q[input / (2 * kQuad)][output][PlaceInQuad(input)];
    both = static_cast<uint8_t>(both | value << (input / kQuad % 2 == 0 ? 0 : 4));
  }
};

static_assert(sizeof(Int8Group) == 544 && sizeof(Int4Group) == 320, "no padding inside");

// The CUDA kernels read a weight output by output, each a row of bytes that begins at a multiple of 16:
//   kFloat32, kBFloat16   the values, [N, K]
//   kInt8                 q of every input, zeros up to whole groups, then one bfloat16 scale per group
//   kFloat8               the e4m3 code of every input, zeros up to 16, then one float32 scale
// w = scale * q in both quantised ones. The int8 values and scales are those of Int8Group.
constexpr int64_t kFloat8Pack = 16;

constexpr int64_t RoundedUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Where a quantised row's scales begin, in bytes.
constexpr int64_t RowScalesAt(WeightFormat format, int64_t inputs) {
  return RoundedUp(inputs, format == WeightFormat::kInt8 ? kGroup : kFloat8Pack);
}

// Bytes of one row, 0 for a format that CUDA does not have. Only quantised ones are padded.
constexpr int64_t LinearRowBytes(WeightFormat format, int64_t inputs) {
  switch (format) {
    case WeightFormat::kFloat32: return 4 * inputs;
    case WeightFormat::kBFloat16: return 2 * inputs;
    case WeightFormat::kInt8: return RoundedUp(RowScalesAt(format, inputs) + 2 * GroupsOf(inputs), 16);
    case WeightFormat::kFloat8: return RowScalesAt(format, inputs) + 16;
    case WeightFormat::kInt4:
    case WeightFormat::kFloat16:
    case WeightFormat::kBFloat16Dot: return 0;
  }
  return 0;
}

}  // namespace normserve::kernels
