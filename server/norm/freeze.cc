// SPDX-License-Identifier: Apache-2.0
// Checks of a finished plan.
#include "norm/freeze.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/string_view.h"

namespace normserve::norm {
namespace {

absl::Status CheckNumbers(const NormSpec& spec, const std::string& where) {
  const kernels::NormNumbers& n = spec.op.numbers;
  for (float value : {n.gain, n.eps, n.mean_coef, n.var_mul, n.var_add}) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": a constant is not finite: ", DescribeNorm(spec)));
    }
  }
  return absl::OkStatus();
}

absl::Status FreezeTensor(at::Tensor& tensor, int64_t width, const std::string& where) {
  if (!tensor.defined()) return absl::OkStatus();
  if (tensor.dim() != 1 || tensor.size(0) != width) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a parameter has ", tensor.numel(), " elements, not ", width));
  }
  tensor = tensor.to(at::kFloat).contiguous();
  return absl::OkStatus();
}

absl::Status FreezeSpec(NormSpec& spec, int64_t width, const std::string& where) {
  NS_RETURN_IF_ERROR(CheckNumbers(spec, where));
  NS_RETURN_IF_ERROR(FreezeTensor(spec.op.gamma, width, where));
  return FreezeTensor(spec.op.beta, width, where);
}

absl::Status CheckCarried(const LayerNorms& norms, NormSite site, const std::string& where) {
  const std::optional<NormSpec>& spec = norms.at(site);
  if (spec->op.numbers.stat != kernels::NormStat::kCarried) return absl::OkStatus();
  const std::optional<NormSpec>& source = norms.at(NormSite::attn_in);
  const bool measured = source && (source->op.numbers.stat == kernels::NormStat::kMeanSquare ||
                                   source->op.numbers.stat == kernels::NormStat::kVariance);
  if (site != NormSite::mlp_in || spec->carried_from != NormSite::attn_in || !measured) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": a carried statistic must stand at mlp_in and be measured by attn_in"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FreezeLayer(const NormInputs& inputs, int64_t layer, LayerNorms& norms) {
  for (size_t s = 0; s < kLayerSites; ++s) {
    const NormSite site = static_cast<NormSite>(s);
    std::optional<NormSpec>& spec = norms.at(site);
    if (!spec) continue;
    const std::string where =
        absl::StrCat("norm ", base::Absl(NormSiteName(site)), " of layer ", layer);
    NS_RETURN_IF_ERROR(FreezeSpec(*spec, SiteWidth(inputs, site), where));
    NS_RETURN_IF_ERROR(CheckCarried(norms, site, where));
  }
  return absl::OkStatus();
}

absl::Status FreezeModelNorms(const NormInputs& inputs, NormPlan& plan) {
  if (plan.embed_out) {
    NS_RETURN_IF_ERROR(FreezeSpec(*plan.embed_out, inputs.hidden, "norm embed_out"));
  }
  if (plan.final) NS_RETURN_IF_ERROR(FreezeSpec(*plan.final, inputs.hidden, "norm final"));
  return absl::OkStatus();
}

}  // namespace normserve::norm
