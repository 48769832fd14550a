// SPDX-License-Identifier: Apache-2.0
// norm_type -> strategy. A constexpr table: registration by static objects gets dropped by linkers.
#include "norm/strategies.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/string_view.h"

namespace normserve::norm {
namespace {

struct Row {
  Family family;
  std::string_view norm_type;
  absl::StatusOr<NormPlan> (*plan)(const NormInputs&);
};

constexpr std::array<Row, 17> kStrategies = {{
    {Family::kLlama, "rms", PlanRms},
    {Family::kLlama, "bhyt", PlanBhyt},
    {Family::kLlama, "bhytline", PlanBhyt},
    {Family::kLlama, "bhytstar", PlanBhytStar},
    {Family::kLlama, "bhytstar_mean", PlanBhytStarMean},
    {Family::kLlama, "lns", PlanLns},
    {Family::kLlama, "peri", PlanPeri},
    {Family::kLlama, "dyt", PlanDyt},
    {Family::kTorchtitan, "rmsnorm", PlanRms},
    {Family::kTorchtitan, "fused_rmsnorm", PlanRms},
    {Family::kTorchtitan, "layernorm", PlanLayerNorm},
    {Family::kTorchtitan, "np_layernorm", PlanNpLayerNorm},
    {Family::kNanoGpt, "layernorm", PlanLayerNorm},
    {Family::kNanoGpt, "rmsnorm", PlanRms},
    {Family::kSimpleNanoGpt, "rmsnorm", PlanRms},
    {Family::kSimpleNanoGpt, "layernorm", PlanLayerNorm},
    {Family::kSimpleNanoGpt, "np_layernorm", PlanNpLayerNorm},
}};

}  // namespace

std::string KnownNormTypes(Family family) {
  std::string names;
  for (const Row& row : kStrategies) {
    if (row.family != family) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", base::Absl(row.norm_type));
  }
  return names;
}

bool IsKnownNormType(Family family, std::string_view norm_type) {
  return std::any_of(kStrategies.begin(), kStrategies.end(), [&](const Row& row) {
    return row.family == family && row.norm_type == norm_type;
  });
}

absl::StatusOr<NormPlan> PlanNorms(const NormInputs& inputs) {
  for (const Row& row : kStrategies) {
    if (row.family == inputs.family && row.norm_type == inputs.norm_type) return row.plan(inputs);
  }
  return absl::InvalidArgumentError(absl::StrCat(inputs.config_file, ": norm_type \"",
                                                 inputs.norm_type, "\" is unknown; known here: ",
                                                 KnownNormTypes(inputs.family)));
}

}  // namespace normserve::norm
