// SPDX-License-Identifier: Apache-2.0
// LayerNorm (arXiv 1607.06450) at every site of the architecture, and the one without parameters.
#include "base/status_macros.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {
namespace {

NormSpec CentredSpec(const NormInputs& inputs) {
  NormSpec spec;
  spec.op.numbers.stat = kernels::NormStat::kVariance;
  spec.op.numbers.centring = kernels::NormCentring::kSubtractMean;
  spec.op.numbers.eps = static_cast<float>(inputs.eps);
  return spec;
}

}  // namespace

// MATCHES: torchtitan's layernorm has a weight and never a bias; nanoGPT's has one if `bias` is set.
absl::StatusOr<NormPlan> PlanLayerNorm(const NormInputs& inputs) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string& module, int64_t, NormSite site) -> absl::StatusOr<NormSpec> {
        NormSpec spec = CentredSpec(inputs);
        const int64_t width = SiteWidth(inputs, site);
        NS_ASSIGN_OR_RETURN(spec.op.gamma, inputs.tensors->Parameter(module + ".weight", {width}));
        if (inputs.layer_norm_bias) {
          NS_ASSIGN_OR_RETURN(spec.op.beta, inputs.tensors->Parameter(module + ".bias", {width}));
        }
        return spec;
      },
      plan));
  return plan;
}

absl::StatusOr<NormPlan> PlanNpLayerNorm(const NormInputs& inputs) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string&, int64_t, NormSite) -> absl::StatusOr<NormSpec> {
        return CentredSpec(inputs);
      },
      plan));
  return plan;
}

}  // namespace normserve::norm
