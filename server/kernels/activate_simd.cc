// SPDX-License-Identifier: Apache-2.0
// silu(N(gate)) * N(up), or gelu(N(x)), in one pass over the row. No torch, no threads.
#include "kernels/activate_rows.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activate_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {

// Elements in flight between the norms and the activation.
constexpr size_t kPiece = 512;

// One projection of a row, read piece by piece in float32: normalised where it has a norm, whose
// statistic is measured wherever a group begins.
template <typename T>
struct Projection {
  const T* x;
  const RowNorm* norm;  // null: none
  size_t group;
  GroupScale scale;

  Projection(const T* row, size_t width, const RowNorm* row_norm)
      : x(row), norm(row_norm), group(norm ? GroupWidth(norm->numbers, width) : width) {}

  // Elements [begin, begin + n), read in order from 0.
  void Read(size_t begin, size_t n, float* out) {
    if (norm == nullptr) return LoadElements(x + begin, n, out);
    while (n > 0) {
      const size_t in_group = begin % group;
      if (in_group == 0) scale = MeasureGroup(x + begin, group, norm->numbers, 0.0f);
      const size_t part = std::min(n, group - in_group);
      NormElements(x + begin, part, *norm, scale, begin, out);
      begin += part;
      out += part;
      n -= part;
    }
  }
};

// silu(gate) * up where neither has a norm: nothing is held between.
template <typename T>
void GateRow(const T* x, size_t width, T* y) {
  const DF d;
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    StoreVec(d, hn::Mul(SiluVec(d, LoadVec(d, x + i)), LoadVec(d, x + width + i)), y + i);
  }
  if (i == width) return;
  const size_t n = width - i;
  StorePart(d, hn::Mul(SiluVec(d, LoadPart(d, x + i, n)), LoadPart(d, x + width + i, n)), y + i, n);
}

template <typename T>
void ActivateRow(const ActivateRows& a, const T* x, T* y) {
  const DF d;
  const size_t width = static_cast<size_t>(a.width);
  if (a.gated && !a.has_gate_norm && !a.has_up_norm) return GateRow(x, width, y);
  Projection<T> gate(x, width, a.has_gate_norm ? &a.gate : nullptr);
  Projection<T> up(x + width, width, a.has_up_norm ? &a.up : nullptr);
  // Room for a last whole vector, so that the loop below needs no tail but at the store.
  alignas(64) float g[kPiece + kLanes] = {};
  alignas(64) float u[kPiece + kLanes] = {};
  for (size_t begin = 0; begin < width; begin += kPiece) {
    const size_t n = std::min(kPiece, width - begin);
    gate.Read(begin, n, g);
    if (a.gated) up.Read(begin, n, u);
    for (size_t i = 0; i < n; i += kLanes) {
      const VF v = hn::LoadU(d, g + i);
      const VF r = a.gated ? hn::Mul(SiluVec(d, v), hn::LoadU(d, u + i)) : GeluVec(d, v);
      if (i + kLanes <= n) {
        StoreVec(d, r, y + begin + i);
      } else {
        StorePart(d, r, y + begin + i, n - i);
      }
    }
  }
}

template <typename T>
void ActivateRowsOf(const ActivateRows& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    ActivateRow(a, x, y);
  }
}

void ActivateRowsTarget(const ActivateRows& args, int64_t begin, int64_t end) {
  if (args.type == RowType::kFloat32) return ActivateRowsOf<float>(args, begin, end);
  ActivateRowsOf<uint16_t>(args, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {
HWY_EXPORT(ActivateRowsTarget);
void ActivateRowsCpu(const ActivateRows& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ActivateRowsTarget)(args, begin, end);
}
}  // namespace normserve::kernels
#endif
