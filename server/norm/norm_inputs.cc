// SPDX-License-Identifier: Apache-2.0
// Names and widths of norm sites.
#include "norm/norm_inputs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace normserve::norm {

std::string LayerPrefix(const NormInputs& inputs, int64_t layer) {
  return absl::StrReplaceAll(inputs.layer_prefix, {{"{}", absl::StrCat(layer)}});
}

std::string SiteModule(const NormInputs& inputs, int64_t layer, NormSite site) {
  if (site == NormSite::embed_out) return inputs.names.embed_out;
  if (site == NormSite::final) return inputs.names.final;
  const std::string& name = inputs.names.layer[static_cast<size_t>(site)];
  return name.empty() ? std::string() : absl::StrCat(LayerPrefix(inputs, layer), name);
}

int64_t SiteWidth(const NormInputs& inputs, NormSite site) {
  switch (site) {
    case NormSite::q: return inputs.heads * inputs.head_dim;
    case NormSite::k:
    case NormSite::v: return inputs.kv_heads * inputs.head_dim;
    case NormSite::gate:
    case NormSite::up: return inputs.ffn;
    default: return inputs.hidden;
  }
}

}  // namespace normserve::norm
