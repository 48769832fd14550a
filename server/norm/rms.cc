// SPDX-License-Identifier: Apache-2.0
// RMSNorm (arXiv 1910.07467) at every site of the architecture: Llama's `rms`, torchtitan's `rmsnorm`
// and `fused_rmsnorm`, nanoGPT's SimpleNorm variant.
#include "base/status_macros.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {

// DIFFERS: torchtitan's rmsnorm rounds to the activation dtype before it multiplies by gamma, its
// fused_rmsnorm after; a checkpoint does not tell which one trained it. We round once, on store: equal
// in float32, one bfloat16 step apart from the former.
absl::StatusOr<NormPlan> PlanRms(const NormInputs& inputs) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string& module, int64_t, NormSite site) {
        return RmsSpec(inputs, module, site, inputs.eps);
      },
      plan));
  return plan;
}

}  // namespace normserve::norm
