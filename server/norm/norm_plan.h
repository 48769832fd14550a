// SPDX-License-Identifier: Apache-2.0
// Norms as data: which norm stands at which site of which layer. A strategy (one file each) turns a
// config and the checkpoint's norm tensors into a NormPlan; passes over the plan derive constants,
// fold gammas and freeze it; the layer body runs the plan and knows no norm's name.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/norm_rows.h"
#include "kernels/ops.h"

namespace normserve::norm {

// Where a norm can stand. attn_in .. mlp_out are per layer, embed_out and final per model.
enum class NormSite { attn_in, q, k, v, attn_out, mlp_in, gate, up, mlp_out, embed_out, final };
inline constexpr size_t kLayerSites = 9;
std::string_view NormSiteName(NormSite site);

// A norm at a site. `op` is what the kernels take; carried_from says where a carried statistic comes
// from (attn_in for BHyT's second point), for checks and for reading.
struct NormSpec {
  kernels::Norm op;
  std::optional<NormSite> carried_from;
};

// "mean_square tanh gain=0.2 eps=1e-06", "carried(attn_in) ...": one line, for reading.
std::string DescribeNorm(const NormSpec& spec);

struct LayerNorms {
  std::array<std::optional<NormSpec>, kLayerSites> sites;  // indexed by NormSite; absent = no op
  std::optional<NormSpec>& at(NormSite site) { return sites[static_cast<size_t>(site)]; }
  const std::optional<NormSpec>& at(NormSite site) const {
    return sites[static_cast<size_t>(site)];
  }
};

struct NormPlan {
  std::string norm_type;  // the strategy's name, as the config has it
  std::vector<LayerNorms> layers;
  std::optional<NormSpec> embed_out;
  std::optional<NormSpec> final;
  std::vector<std::string> folded;  // one line per folded scale, for reading
  std::vector<std::string> notes;   // what was read and deliberately not followed
};

}  // namespace normserve::norm
