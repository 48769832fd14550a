// SPDX-License-Identifier: Apache-2.0
// Shared steps of the strategies.
#include "norm/plan_builder.h"

#include "base/status_macros.h"

namespace normserve::norm {

NormPlan EmptyPlan(const NormInputs& inputs) {
  NormPlan plan;
  plan.norm_type = inputs.norm_type;
  plan.layers.resize(static_cast<size_t>(inputs.layers));
  return plan;
}

absl::StatusOr<NormSpec> RmsSpec(const NormInputs& inputs, const std::string& module, NormSite site,
                                 double eps) {
  NormSpec spec;
  spec.op.numbers.stat = kernels::NormStat::kMeanSquare;
  spec.op.numbers.eps = static_cast<float>(eps);
  NS_ASSIGN_OR_RETURN(spec.op.gamma, inputs.tensors->Parameter(module + ".weight",
                                                               {SiteWidth(inputs, site)}));
  return spec;
}

absl::Status FillNamedSites(const NormInputs& inputs, const SpecMaker& make, NormPlan& plan) {
  for (int64_t layer = 0; layer < inputs.layers; ++layer) {
    for (size_t s = 0; s < kLayerSites; ++s) {
      const NormSite site = static_cast<NormSite>(s);
      const std::string module = SiteModule(inputs, layer, site);
      if (module.empty()) continue;
      NS_ASSIGN_OR_RETURN(plan.layers[static_cast<size_t>(layer)].at(site),
                          make(module, layer, site));
    }
  }
  if (!inputs.names.embed_out.empty()) {
    NS_ASSIGN_OR_RETURN(plan.embed_out, make(inputs.names.embed_out, -1, NormSite::embed_out));
  }
  if (!inputs.names.final.empty()) {
    NS_ASSIGN_OR_RETURN(plan.final, make(inputs.names.final, -1, NormSite::final));
  }
  return absl::OkStatus();
}

}  // namespace normserve::norm
