// SPDX-License-Identifier: Apache-2.0
// Names and one-line descriptions of norms, for errors and for `inspect`. No arithmetic here.
#include "norm/norm_plan.h"

#include "absl/strings/str_cat.h"
#include "base/string_view.h"

namespace normserve::norm {

std::string_view NormSiteName(NormSite site) {
  switch (site) {
    case NormSite::attn_in: return "attn_in";
    case NormSite::q: return "q";
    case NormSite::k: return "k";
    case NormSite::v: return "v";
    case NormSite::attn_out: return "attn_out";
    case NormSite::mlp_in: return "mlp_in";
    case NormSite::gate: return "gate";
    case NormSite::up: return "up";
    case NormSite::mlp_out: return "mlp_out";
    case NormSite::embed_out: return "embed_out";
    case NormSite::final: return "final";
  }
  return "unknown";
}

namespace {

std::string DescribeStat(const NormSpec& spec) {
  switch (spec.op.numbers.stat) {
    case kernels::NormStat::kNone: return "none";
    case kernels::NormStat::kMeanSquare: return "mean_square";
    case kernels::NormStat::kVariance: return "variance";
    case kernels::NormStat::kCarried: break;
  }
  return absl::StrCat("carried(",
                      spec.carried_from ? base::Absl(NormSiteName(*spec.carried_from)) : "?", ")");
}

}  // namespace

std::string DescribeNorm(const NormSpec& spec) {
  const kernels::NormNumbers& n = spec.op.numbers;
  std::string text = DescribeStat(spec);
  absl::StrAppend(&text, n.phi == kernels::NormPhi::kTanh ? " tanh" : " identity");
  if (n.centring == kernels::NormCentring::kSubtractMean) absl::StrAppend(&text, " centred");
  absl::StrAppend(&text, " gain=", n.gain);
  if (n.stat != kernels::NormStat::kNone) absl::StrAppend(&text, " eps=", n.eps);
  if (n.mean_coef != 0.0f) absl::StrAppend(&text, " mean_coef=", n.mean_coef);
  if (n.stat == kernels::NormStat::kCarried) {
    absl::StrAppend(&text, " var_mul=", n.var_mul, " var_add=", n.var_add);
  }
  if (n.group_width != 0) absl::StrAppend(&text, " group_width=", n.group_width);
  if (spec.op.gamma.defined()) absl::StrAppend(&text, " gamma");
  if (spec.op.beta.defined()) absl::StrAppend(&text, " beta");
  return text;
}

}  // namespace normserve::norm
