// SPDX-License-Identifier: Apache-2.0
// What several strategies need: an empty plan of the right size, plain specs, and putting one spec at
// every site that the architecture names.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "norm/norm_inputs.h"

namespace normserve::norm {

NormPlan EmptyPlan(const NormInputs& inputs);

// gamma * x * gain * rsqrt(mean(x^2) + eps), gamma read from `module`.weight.
absl::StatusOr<NormSpec> RmsSpec(const NormInputs& inputs, const std::string& module, NormSite site,
                                 double eps);

// Makes the norm of one site; `layer` is -1 for embed_out and final.
using SpecMaker = std::function<absl::StatusOr<NormSpec>(const std::string& module, int64_t layer,
                                                         NormSite site)>;
// Fills every site that the architecture names, layers first, then embed_out and final.
absl::Status FillNamedSites(const NormInputs& inputs, const SpecMaker& make, NormPlan& plan);

}  // namespace normserve::norm
