// SPDX-License-Identifier: Apache-2.0
// The last pass over a plan: checks that the layer body can run it as it stands.
#pragma once

#include "absl/status/status.h"
#include "norm/norm_inputs.h"
#include "norm/norm_plan.h"

namespace normserve::norm {

// Every number finite, every gamma and beta float32, contiguous and as wide as its site, and every
// carried statistic measured by attn_in of the same layer, which must measure one.
// InvalidArgument names layer, site and value.
absl::Status FreezeLayer(const NormInputs& inputs, int64_t layer, LayerNorms& norms);

// The same for the model's own norms, embed_out and final.
absl::Status FreezeModelNorms(const NormInputs& inputs, NormPlan& plan);

}  // namespace normserve::norm
