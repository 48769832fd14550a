// SPDX-License-Identifier: Apache-2.0
// rope_theta and rope_scaling of a Hugging Face config.
#include "base/status_macros.h"
#include "model/config_parts.h"

namespace normserve::model {
namespace {

constexpr double kMaxFactor = 1e6;

absl::Status ReadLlama3(const JsonFields& scaling, RopeConfig& rope) {
  NS_ASSIGN_OR_RETURN(rope.low_freq_factor, scaling.Number("low_freq_factor", 1e-6, kMaxFactor));
  NS_ASSIGN_OR_RETURN(rope.high_freq_factor, scaling.Number("high_freq_factor", 1e-6, kMaxFactor));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return scaling.Bad("high_freq_factor", "a number above low_freq_factor");
  }
  NS_ASSIGN_OR_RETURN(rope.original_max_positions,
                      scaling.Int("original_max_position_embeddings", 1, kMaxPositions));
  return absl::OkStatus();
}

absl::Status ReadYarn(const JsonFields& scaling, RopeConfig& rope) {
  NS_ASSIGN_OR_RETURN(
      rope.original_max_positions,
      scaling.Int("original_max_position_embeddings", 1, kMaxPositions, int64_t{0}));
  if (scaling.Has("attention_factor")) {
    NS_ASSIGN_OR_RETURN(rope.attention_factor,
                        scaling.Number("attention_factor", 1e-6, kMaxFactor));
  }
  NS_ASSIGN_OR_RETURN(rope.beta_fast, scaling.Number("beta_fast", 0.0, kMaxFactor, 32.0));
  NS_ASSIGN_OR_RETURN(rope.beta_slow, scaling.Number("beta_slow", 0.0, kMaxFactor, 1.0));
  // MATCHES: zero counts as absent there.
  if (rope.beta_fast == 0.0) rope.beta_fast = 32.0;
  if (rope.beta_slow == 0.0) rope.beta_slow = 1.0;
  NS_ASSIGN_OR_RETURN(rope.mscale, scaling.Number("mscale", 0.0, kMaxFactor, 0.0));
  NS_ASSIGN_OR_RETURN(rope.mscale_all_dim, scaling.Number("mscale_all_dim", 0.0, kMaxFactor, 0.0));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRope(const JsonFields& fields, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.type = RopeType::kDefault;
  NS_ASSIGN_OR_RETURN(rope.theta, fields.Number("rope_theta", 1.0 + 1e-6, 1e15, 10000.0));
  const nlohmann::json* value = fields.Find("rope_scaling");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) return fields.Bad("rope_scaling", "null or an object");
  const JsonFields scaling(*value, fields.where() + ": rope_scaling");
  // MATCHES: where both keys are given, `type` wins in the authors' config class.
  const std::string key = scaling.Has("type") ? "type" : "rope_type";
  NS_ASSIGN_OR_RETURN(
      const std::string type,
      scaling.OneOf(key, {"default", "none", "linear", "dynamic", "llama3", "yarn"}, "default"));
  if (type == "default" || type == "none") return absl::OkStatus();
  NS_ASSIGN_OR_RETURN(rope.factor, scaling.Number("factor", 1.0, kMaxFactor));
  if (type == "linear") {
    rope.type = RopeType::kLinear;
  } else if (type == "dynamic") {
    // DIFFERS: transformers stretches the base once a sequence outgrows max_position_embeddings, which
    // would change keys that are cached already. Up to that length dynamic equals none, and longer
    // requests are refused.
    rope.type = RopeType::kDynamic;
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    return ReadLlama3(scaling, rope);
  } else {
    rope.type = RopeType::kYarn;
    return ReadYarn(scaling, rope);
  }
  return absl::OkStatus();
}

}  // namespace normserve::model
