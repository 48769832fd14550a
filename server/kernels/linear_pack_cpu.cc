// SPDX-License-Identifier: Apache-2.0
// PackWeight on the CPU.
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "kernels/large_pages.h"
#include "kernels/linear_panels.h"
#include "kernels/linear_rows.h"
#include "kernels/op_args.h"
#include "kernels/simd_target.h"

namespace normserve::kernels {
namespace {

// body(elements, begin, end) over all panels of a weight, with its elements in their own type.
template <class Body>
void ForPanels(const at::Tensor& weight, const Body& body) {
  ForItems(PanelsOf(weight.size(0)), 1, weight.size(1) * kPanel, [&](int64_t begin, int64_t end) {
    switch (weight.scalar_type()) {
      case at::kFloat: return body(weight.const_data_ptr<float>(), begin, end);
      case at::kBFloat16: return body(weight.const_data_ptr<at::BFloat16>(), begin, end);
      default: return body(weight.const_data_ptr<at::Half>(), begin, end);
    }
  });
}

template <typename From, typename To>
void PackPanels(const at::Tensor& weight, const From* from, To* panels, int64_t begin, int64_t end) {
  const int64_t n = weight.size(0), k = weight.size(1);
  const int64_t row_stride = weight.stride(0), column_stride = weight.stride(1);
  for (int64_t p = begin; p < end; ++p) {
    To* to = panels + p * PanelSize(panels, k);
    const int64_t lanes = std::min(kPanel, n - p * kPanel);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const From* row = from + (p * kPanel + lane) * row_stride;
      for (int64_t i = 0; i < k; ++i) {
        to[PlaceInPanel(panels, i) + lane * OutputStep(panels)] =
            static_cast<To>(static_cast<float>(row[i * column_stride]));
      }
    }
  }
}

// A panel's weights as [groups * 32, 16] float32 first, then rounded.
template <typename From, class Group>
void QuantisePanels(const at::Tensor& weight, const From* from, Group* panels, int64_t begin,
                    int64_t end) {
  const int64_t n = weight.size(0), k = weight.size(1), groups = GroupsOf(k);
  std::vector<float> block(static_cast<size_t>(groups * kGroup * kPanel));
  for (int64_t p = begin; p < end; ++p) {
    const int64_t lanes = std::min(kPanel, n - p * kPanel);
    if (lanes < kPanel) std::fill(block.begin(), block.end(), 0.0f);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const From* row = from + (p * kPanel + lane) * weight.stride(0);
      for (int64_t i = 0; i < k; ++i) {
        block[static_cast<size_t>(i * kPanel + lane)] = static_cast<float>(row[i * weight.stride(1)]);
      }
    }
    QuantisePanelCpu(block.data(), groups, panels + p * groups);
  }
}

template <class Group>
at::Tensor Quantise(const at::Tensor& weight) {
  at::Tensor panels = ZerosInLargePages(
      {PanelsOf(weight.size(0)), GroupsOf(weight.size(1)), static_cast<int64_t>(sizeof(Group))},
      at::kByte);
  Group* to = reinterpret_cast<Group*>(panels.data_ptr<uint8_t>());
  ForPanels(weight, [&](const auto* from, int64_t begin, int64_t end) {
    QuantisePanels(weight, from, to, begin, end);
  });
  return panels;
}

template <typename To>
at::Tensor PackAs(const at::Tensor& weight, at::ScalarType dtype) {
  at::Tensor panels = ZerosInLargePages(PanelsShape(weight.size(0), weight.size(1), dtype), dtype);
  To* to = panels.data_ptr<To>();
  ForPanels(weight, [&](const auto* from, int64_t begin, int64_t end) {
    PackPanels(weight, from, to, begin, end);
  });
  return panels;
}

// [gate | up] as 8 rows of gate and 8 of up in turns.
at::Tensor InRuns(const at::Tensor& gate_up) {
  const int64_t k = gate_up.size(1);
  return gate_up.reshape({2, -1, kGateRun, k}).transpose(0, 1).reshape({-1, k});
}

at::Tensor PackWeightCpu(const at::Tensor& stored, int64_t format, bool gate_up) {
  TORCH_CHECK(stored.dim() == 2, "weight: expected [N, K], got ", stored.sizes());
  const at::Tensor weight = gate_up && GatesInRuns(stored.size(0)) ? InRuns(stored) : stored;
  TORCH_CHECK(weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16 ||
                  weight.scalar_type() == at::kHalf,
              "weight: expected float32, bfloat16 or float16, got ", weight.scalar_type());
  switch (CheckCpuFormat(format)) {
    case WeightFormat::kInt8: return Quantise<Int8Group>(weight);
    case WeightFormat::kInt4: return Quantise<Int4Group>(weight);
    case WeightFormat::kBFloat16:
    case WeightFormat::kBFloat16Dot: return PackAs<at::BFloat16>(weight, at::kBFloat16);
    case WeightFormat::kFloat16: return PackAs<at::Half>(weight, at::kHalf);
    default: return PackAs<float>(weight, at::kFloat);
  }
}

}  // namespace

WeightFormat CheckCpuFormat(int64_t format) {
  TORCH_CHECK(format != static_cast<int64_t>(WeightFormat::kFloat8),
              "format: 4 (float8) has kernels on CUDA only");
  TORCH_CHECK(format >= 0 && format <= static_cast<int64_t>(WeightFormat::kFloat16), "format: ", format,
              ", on this device allowed 0 (float32), 1 (bfloat16), 2 (int8), 3 (int4), 5 (bfloat16 dot) and 6 (float16)");
  if (format == static_cast<int64_t>(WeightFormat::kBFloat16Dot) && !HasBFloat16Dot()) return WeightFormat::kBFloat16;
  return static_cast<WeightFormat>(format);
}

TORCH_LIBRARY_IMPL(normserve, CPU, m) { m.impl("pack_weight", PackWeightCpu); }

}  // namespace normserve::kernels
