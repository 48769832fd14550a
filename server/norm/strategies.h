// SPDX-License-Identifier: Apache-2.0
// The table of norm strategies. Adding a norm is one small file with a Plan function, declared here, one
// row in strategies.cc and one test vector; CONTRIBUTING.md has the steps.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "norm/norm_inputs.h"

namespace normserve::norm {

// The plan of the strategy that `inputs.norm_type` names; an unknown name lists the known ones of the
// family. Reads norm tensors, changes no weight.
absl::StatusOr<NormPlan> PlanNorms(const NormInputs& inputs);

// "rms, bhyt, ...": the names that a family knows, for messages.
std::string KnownNormTypes(Family family);
bool IsKnownNormType(Family family, std::string_view norm_type);

// One function per strategy file; each is pure.
absl::StatusOr<NormPlan> PlanRms(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanLayerNorm(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanNpLayerNorm(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanBhyt(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanBhytStar(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanBhytStarMean(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanLns(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanPeri(const NormInputs& inputs);
absl::StatusOr<NormPlan> PlanDyt(const NormInputs& inputs);

}  // namespace normserve::norm
