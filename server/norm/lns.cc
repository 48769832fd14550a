// SPDX-License-Identifier: Apache-2.0
// LayerNorm Scaling (arXiv 2502.05795): RMSNorm whose output is multiplied by 1/sqrt(l), l the layer's
// index counted from 1, at both norms of a layer. The final norm is a plain RMSNorm.
#include <cmath>

#include "base/status_macros.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {

absl::StatusOr<NormPlan> PlanLns(const NormInputs& inputs) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string& module, int64_t layer, NormSite site) -> absl::StatusOr<NormSpec> {
        NS_ASSIGN_OR_RETURN(NormSpec spec, RmsSpec(inputs, module, site, inputs.eps));
        if (layer >= 0) {
          spec.op.numbers.gain =
              static_cast<float>(1.0 / std::sqrt(static_cast<double>(layer + 1)));
        }
        return spec;
      },
      plan));
  return plan;
}

}  // namespace normserve::norm
