// SPDX-License-Identifier: Apache-2.0
// Dynamic Tanh (arXiv 2503.10622): weight * tanh(alpha * x) (+ bias), no statistic; alpha is one number
// per site. At both norms of a layer and at the end.
#include "base/status_macros.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {

absl::StatusOr<NormPlan> PlanDyt(const NormInputs& inputs) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string& module, int64_t, NormSite site) -> absl::StatusOr<NormSpec> {
        NormSpec spec;
        spec.op.numbers.phi = kernels::NormPhi::kTanh;
        const int64_t width = SiteWidth(inputs, site);
        NS_ASSIGN_OR_RETURN(spec.op.numbers.gain, inputs.tensors->Scalar(module + ".alpha"));
        NS_ASSIGN_OR_RETURN(spec.op.gamma, inputs.tensors->Parameter(module + ".weight", {width}));
        if (inputs.tensors->Has(module + ".bias")) {
          NS_ASSIGN_OR_RETURN(spec.op.beta, inputs.tensors->Parameter(module + ".bias", {width}));
        }
        return spec;
      },
      plan));
  return plan;
}

}  // namespace normserve::norm
