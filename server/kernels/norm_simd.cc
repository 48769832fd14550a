// SPDX-License-Identifier: Apache-2.0
// Norm and ResidualNorm over rows, Highway with run-time dispatch. One body for all norms: what
// differs between them is in NormNumbers. No torch, no threads: the caller hands out row ranges.
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// y = N(x) for one row, y may be x; row_stat as NormRows says.
template <typename T>
void NormRow(const T* x, T* y, size_t width, const RowNorm& norm, float* row_stat) {
  const DF d;
  const size_t group = GroupWidth(norm.numbers, width);
  for (size_t begin = 0; begin < width; begin += group) {
    const float carried = row_stat ? *row_stat : 0.0f;
    const GroupScale scale = MeasureGroup(x + begin, group, norm.numbers, carried);
    if (row_stat && group == width && MeasuresStat(norm.numbers)) *row_stat = scale.stat;
    WithElement(norm, scale, begin, [&](const auto& element) HWY_ATTR {
      const T* in = x + begin;
      T* out = y + begin;
      size_t i = 0;
      for (; i + kLanes <= group; i += kLanes) {
        StoreVec(d, element(d, LoadVec(d, in + i), i, kLanes), out + i);
      }
      if (const size_t n = group - i) {
        StorePart(d, element(d, LoadPart(d, in + i, n), i, n), out + i, n);
      }
    });
  }
}

// h += delta, rounded once.
template <typename T>
void AddRow(T* HWY_RESTRICT h, const T* HWY_RESTRICT delta, size_t width) {
  const DF d;
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    StoreVec(d, hn::Add(LoadVec(d, h + i), LoadVec(d, delta + i)), h + i);
  }
  if (const size_t n = width - i) {
    StorePart(d, hn::Add(LoadPart(d, h + i, n), LoadPart(d, delta + i, n)), h + i, n);
  }
}

// h += N(delta), rounded once, after the addition.
template <typename T>
void NormAddRow(T* HWY_RESTRICT h, const T* HWY_RESTRICT delta, size_t width,
                const RowNorm& norm) {
  const DF d;
  const size_t group = GroupWidth(norm.numbers, width);
  for (size_t begin = 0; begin < width; begin += group) {
    const GroupScale scale = MeasureGroup(delta + begin, group, norm.numbers, 0.0f);
    WithElement(norm, scale, begin, [&](const auto& element) HWY_ATTR {
      const T* in = delta + begin;
      T* out = h + begin;
      size_t i = 0;
      for (; i + kLanes <= group; i += kLanes) {
        const VF v = element(d, LoadVec(d, in + i), i, kLanes);
        StoreVec(d, hn::Add(LoadVec(d, out + i), v), out + i);
      }
      if (const size_t n = group - i) {
        const VF v = element(d, LoadPart(d, in + i, n), i, n);
        StorePart(d, hn::Add(LoadPart(d, out + i, n), v), out + i, n);
      }
    });
  }
}

template <typename T>
void NormRowsOf(const NormRows& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    NormRow(static_cast<const T*>(a.x) + r * a.x_stride, static_cast<T*>(a.y) + r * a.y_stride,
            static_cast<size_t>(a.width), a.norm, a.row_stat ? a.row_stat + r : nullptr);
  }
}

template <typename T>
void ResidualRowsOf(const ResidualRows& a, int64_t begin, int64_t end) {
  const size_t width = static_cast<size_t>(a.width);
  for (int64_t r = begin; r < end; ++r) {
    T* h = static_cast<T*>(a.h) + r * a.h_stride;
    const T* delta = static_cast<const T*>(a.delta) + r * a.delta_stride;
    T* y = a.has_next ? static_cast<T*>(a.y) + r * a.y_stride : nullptr;
    float* row_stat = a.row_stat ? a.row_stat + r : nullptr;
    if (a.has_out) {
      NormAddRow(h, delta, width, a.out);
    } else {
      AddRow(h, delta, width);
    }
    // Reads h back as stored: the norm sees the rounded residual, as the unfused ops would.
    if (a.has_next) NormRow(h, y, width, a.next, row_stat);
  }
}

void NormRowsTarget(const NormRows& args, int64_t begin, int64_t end) {
  if (args.type == RowType::kFloat32) return NormRowsOf<float>(args, begin, end);
  NormRowsOf<uint16_t>(args, begin, end);
}

void ResidualRowsTarget(const ResidualRows& args, int64_t begin, int64_t end) {
  if (args.type == RowType::kFloat32) return ResidualRowsOf<float>(args, begin, end);
  ResidualRowsOf<uint16_t>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(NormRowsTarget);
HWY_EXPORT(ResidualRowsTarget);

void NormRowsCpu(const NormRows& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(NormRowsTarget)(args, begin, end);
}

void ResidualRowsCpu(const ResidualRows& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ResidualRowsTarget)(args, begin, end);
}

}  // namespace normserve::kernels
#endif
