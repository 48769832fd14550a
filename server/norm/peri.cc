// SPDX-License-Identifier: Apache-2.0
// Peri-LN (arXiv 2502.02732): RMSNorm before and after each sub-block, optionally on the embeddings,
// and at the end. h += N_out(Attn(N_in(h))); h += N_out(MLP(N_in(h))).
#include "base/status_macros.h"
#include "norm/plan_builder.h"
#include "norm/strategies.h"

namespace normserve::norm {

// Weights are plain (no "1 + w"): Gemma-2 checkpoints proper differ and are refused by model_type.
absl::StatusOr<NormPlan> PlanPeri(const NormInputs& inputs) {
  NormInputs named = inputs;
  // The norm of the embeddings is the one optional norm of this family: its presence is the switch.
  if (!inputs.tensors->Has(inputs.names.embed_out + ".weight")) named.names.embed_out.clear();
  NormPlan plan = EmptyPlan(named);
  NS_RETURN_IF_ERROR(FillNamedSites(
      named,
      [&](const std::string& module, int64_t, NormSite site) {
        return RmsSpec(named, module, site, named.eps);
      },
      plan));
  return plan;
}

}  // namespace normserve::norm
