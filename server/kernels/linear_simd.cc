// SPDX-License-Identifier: Apache-2.0
// The linear kernel: register tiles of (rows) x (panels of 16 outputs). See linear_rows.h for the law
// that it keeps. float16 weights are in linear_f16_simd.cc. bfloat16 weights are widened on load:
// kBFloat16Dot, which rounds the inputs instead, has a kernel of its own (linear_bf16_dot.cc). No torch, no threads.
#include "kernels/linear_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/linear_float-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

int64_t RowsAtOnceTarget() { return kMaxRows; }

int64_t PanelsAtOnceTarget(int64_t rows, bool narrow) {
#if HWY_TARGET == HWY_AVX2
  if (narrow && rows > 1) return PanelsPerCall<NarrowKernel<float>>(rows);
#endif
  return PanelsPerCall<FloatKernel<float>>(rows);
}

void LinearPanelsTarget(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  if (args.format == WeightFormat::kFloat32) {
    return RunFloatPanels<float>(args, packed, begin, end);
  }
  RunFloatPanels<uint32_t>(args, packed, begin, end);
}

// Inputs of a row that are interleaved at a time.
constexpr size_t kChunk = 64;

template <typename T>
void PackInputsOf(const LinearRows& a, int64_t begin, int64_t end, float* packed) {
  const RowTiles tiles = TilesOf(a.rows);
  const size_t k = static_cast<size_t>(a.k);
  for (int64_t part = begin; part < end; ++part) {
    const int64_t t = part / kTileParts, first = tiles.first_row(t, a.rows);
    const auto widen = [&](size_t row, size_t at, size_t count, uint32_t* out) {
      const T* from = static_cast<const T*>(a.x) + (first + static_cast<int64_t>(row)) * a.x_stride;
      const DF d;
      size_t i = 0;
      float values[kChunk];
      for (; i + kLanes <= count; i += kLanes) hn::StoreU(LoadVec(d, from + at + i), d, values + i);
      for (; i < count; ++i) values[i] = ToFloat(from[at + i]);
      std::memcpy(out, values, count * sizeof(float));
    };
    InterleaveTile<kChunk>(static_cast<size_t>(tiles.first_row(t + 1, a.rows) - first), k, part % kTileParts, widen,
                           packed + static_cast<size_t>(first) * k);
  }
}

void PackInputsTarget(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  if (args.x_type == RowType::kFloat32) return PackInputsOf<float>(args, begin, end, packed);
  PackInputsOf<uint16_t>(args, begin, end, packed);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(RowsAtOnceTarget);
HWY_EXPORT(PanelsAtOnceTarget);
HWY_EXPORT(PackInputsTarget);
HWY_EXPORT(LinearPanelsTarget);

bool SplitsWideVectors() {
#if defined(__x86_64__)
  return __builtin_cpu_is("znver1") != 0;
#else
  return false;
#endif
}

RowTiles TilesOf(int64_t rows) {
  const int64_t max = HWY_DYNAMIC_DISPATCH(RowsAtOnceTarget)();
  return RowTiles{(rows + max - 1) / max};
}

int64_t PanelsAtOnce(int64_t rows, bool narrow) {
  return HWY_DYNAMIC_DISPATCH(PanelsAtOnceTarget)(rows, narrow);
}

void PackInputsCpu(const LinearRows& args, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackInputsTarget)(args, begin, end, packed);
}

void LinearPanelsCpu(const LinearRows& args, const float* packed, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LinearPanelsTarget)(args, packed, begin, end);
}

}  // namespace normserve::kernels
#endif
