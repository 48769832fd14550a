// SPDX-License-Identifier: Apache-2.0
// BHyT* (arXiv 2601.09719): every norm measures its own row. As the authors' code has it (mean square),
// and as the paper writes it (standard deviation and mean).
#include "base/status_macros.h"
#include "norm/bhyt_parts.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {
namespace {

// MATCHES: the final norm is always RMSNorm; the code's test for a BHyT* one is never true.
absl::StatusOr<NormPlan> PlanStar(const NormInputs& inputs, bool with_mean) {
  NormPlan plan = EmptyPlan(inputs);
  NS_RETURN_IF_ERROR(FillNamedSites(
      inputs,
      [&](const std::string& module, int64_t layer, NormSite site) -> absl::StatusOr<NormSpec> {
        if (layer < 0) return RmsSpec(inputs, module, site, inputs.eps);
        const double kappa = KappaOf(inputs.bhyt, layer + 1);
        NS_ASSIGN_OR_RETURN(BoundedNorm norm, ReadBoundedNorm(inputs, module, site, kappa));
        if (with_mean) {
          norm.spec.op.numbers.stat = kernels::NormStat::kVariance;
          norm.spec.op.numbers.mean_coef = static_cast<float>(1.0 / kappa);
        }
        return std::move(norm.spec);
      },
      plan));
  return plan;
}

}  // namespace

absl::StatusOr<NormPlan> PlanBhytStar(const NormInputs& inputs) { return PlanStar(inputs, false); }

// gamma * tanh(lam * x / (kappa * s + |mu|)), s = sqrt(var + 1e-6): divided through by kappa.
absl::StatusOr<NormPlan> PlanBhytStarMean(const NormInputs& inputs) {
  return PlanStar(inputs, true);
}

}  // namespace normserve::norm
