// SPDX-License-Identifier: Apache-2.0
// Where the CPU's PackWeight puts a weight, for who packs and who reads it (linear_rows.h has the layouts).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <array>
#include <cstdint>

#include "kernels/linear_rows.h"

namespace normserve::kernels {

// The format that has kernels on this processor; others are a TORCH_CHECK failure.
WeightFormat CheckCpuFormat(int64_t format);

inline int64_t PanelsOf(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Where input i of the first output of a panel lies in it: one input after the other, but pairs in bfloat16.
template <typename W>
int64_t PlaceInPanel(const W* /*panels*/, int64_t i) {
  return i * kPanel;
}
inline int64_t PlaceInPanel(const at::BFloat16* /*panels*/, int64_t i) { return i / 2 * 2 * kPanel + i % 2; }
// From an output to the next.
template <typename W>
constexpr int64_t OutputStep(const W* /*panels*/) {
  return 1;
}
constexpr int64_t OutputStep(const at::BFloat16* /*panels*/) { return 2; }
template <typename W>
constexpr int64_t PanelSize(const W* /*panels*/, int64_t k) {
  return k * kPanel;
}
constexpr int64_t PanelSize(const at::BFloat16* /*panels*/, int64_t k) { return PairsOf(k) * 2 * kPanel; }

inline std::array<int64_t, 3> PanelsShape(int64_t n, int64_t k, at::ScalarType dtype) {
  if (dtype != at::kBFloat16) return {PanelsOf(n), k, kPanel};
  return {PanelsOf(n), PairsOf(k), 2 * kPanel};
}

// Outputs of gate and up that LinearRows' kGate reads in turns, where they come out even.
constexpr bool GatesInRuns(int64_t outputs) { return outputs % (2 * kGateRun) == 0; }

}  // namespace normserve::kernels
