// SPDX-License-Identifier: Apache-2.0
// Hugging Face config.json of model_type llama: stock keys with transformers' defaults, and the keys of
// the BHyT code. Keys that only matter in training (initial lam values, dropout) are not read.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "model/config_parts.h"

namespace normserve::model {
namespace {

constexpr int64_t kMaxSeqLen = int64_t{1} << 31;
constexpr double kHuge = 1e30;

// "0,2" or a list; MATCHES: a comma string is how the authors' code takes it.
absl::Status ReadExactLayers(const JsonFields& fields, ModelConfig& config) {
  norm::BhytOptions& bhyt = config.bhyt;
  NS_ASSIGN_OR_RETURN(bhyt.exact_layers,
                      fields.Int("var_approx_exact_layers", 0, kMaxLayers, int64_t{0}));
  const std::string key = "var_approx_exact_layer_list";
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  const std::string* text = value->get_ptr<const std::string*>();
  if (text == nullptr) {
    NS_ASSIGN_OR_RETURN(bhyt.exact_layer_list, fields.IntOrList(key, 0, kMaxLayers));
    return absl::OkStatus();
  }
  for (const auto part : absl::StrSplit(*text, ',', absl::SkipWhitespace())) {
    int64_t layer = 0;
    if (!absl::SimpleAtoi(part, &layer) || layer < 0 || layer > kMaxLayers) {
      return fields.Bad(key, "layer indices separated by commas");
    }
    bhyt.exact_layer_list.push_back(layer);
  }
  return absl::OkStatus();
}

absl::Status ReadLayerRange(const JsonFields& fields, ModelConfig& config) {
  const std::string key = "bhyt_layer_range";
  if (fields.Has(key)) {
    NS_ASSIGN_OR_RETURN(const std::vector<int64_t> range, fields.IntOrList(key, 0, kMaxLayers));
    if (!fields.Find(key)->is_array() || range.size() != 2 || range[0] > range[1]) {
      return fields.Bad(key, "[first, last], layer indices, both inclusive, first <= last");
    }
    config.bhyt.layer_range = {range[0], range[1]};
  }
  NS_ASSIGN_OR_RETURN(config.bhyt.fallback_norm_type,
                      fields.OneOf("fallback_norm_type", {"rms", "bhytstar"}, "rms"));
  return absl::OkStatus();
}

absl::Status ReadCalibration(const JsonFields& fields, ModelConfig& config) {
  const std::string key = "var_approx_calibration";
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  const std::string allowed = "a list of at most num_hidden_layers numbers above 0";
  if (!value->is_array() || value->size() > static_cast<size_t>(config.layers)) {
    return fields.Bad(key, allowed);
  }
  for (const nlohmann::json& item : *value) {
    double number = 0.0;
    if (const double* f = item.get_ptr<const nlohmann::json::number_float_t*>()) number = *f;
    else if (const auto* i = item.get_ptr<const nlohmann::json::number_integer_t*>())
      number = static_cast<double>(*i);
    if (!(number > 0.0 && number < kHuge)) return fields.Bad(key, allowed);
    config.bhyt.calibration.push_back(number);
  }
  return absl::OkStatus();
}

absl::Status ReadBhyt(const JsonFields& fields, ModelConfig& config) {
  norm::BhytOptions& bhyt = config.bhyt;
  NS_ASSIGN_OR_RETURN(bhyt.kappa, fields.Number("bhyt_kappa", 1e-6, 1e6, 10.0));
  // DIFFERS: the authors' code takes an unknown schedule for none; we refuse it.
  NS_ASSIGN_OR_RETURN(bhyt.kappa_schedule,
                      fields.OneOf("bhyt_kappa_schedule", {"none", "decay", "grow", "mild_grow"},
                                   "none"));
  NS_ASSIGN_OR_RETURN(bhyt.var_approx_method,
                      fields.OneOf("var_approx_method",
                                   {"baseline", "beta", "eta", "residual_aware"}, "baseline"));
  NS_ASSIGN_OR_RETURN(bhyt.use_gamma_var, fields.Bool("use_gamma_var", false));
  NS_ASSIGN_OR_RETURN(bhyt.inference_var_dtype,
                      fields.OneOf("inference_var_dtype", {"float32", "input"}, "float32"));
  if (fields.Has("last_layer_lam")) {
    NS_ASSIGN_OR_RETURN(bhyt.last_layer_lam, fields.Number("last_layer_lam", -1e6, 1e6));
  }
  if (fields.Has("seq_len")) {
    NS_ASSIGN_OR_RETURN(bhyt.seq_len, fields.Int("seq_len", 1, kMaxSeqLen));
  }
  NS_RETURN_IF_ERROR(ReadExactLayers(fields, config));
  NS_RETURN_IF_ERROR(ReadLayerRange(fields, config));
  return ReadCalibration(fields, config);
}

absl::Status ReadShape(const JsonFields& fields, ModelConfig& config) {
  NS_ASSIGN_OR_RETURN(config.vocab, fields.Int("vocab_size", 1, kMaxVocab));
  NS_ASSIGN_OR_RETURN(config.hidden, fields.Int("hidden_size", 1, kMaxWidth));
  NS_ASSIGN_OR_RETURN(config.ffn, fields.Int("intermediate_size", 1, kMaxFfn));
  NS_ASSIGN_OR_RETURN(config.layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  NS_ASSIGN_OR_RETURN(config.heads, fields.Int("num_attention_heads", 1, kMaxHeads));
  NS_ASSIGN_OR_RETURN(config.kv_heads,
                      fields.Int("num_key_value_heads", 1, kMaxHeads, config.heads));
  if (!fields.Has("head_dim") && config.hidden % config.heads != 0) {
    return fields.Bad("num_attention_heads",
                      absl::StrCat("a divisor of hidden_size (", config.hidden, ") without head_dim"));
  }
  if (!fields.Has("head_dim") && config.hidden / config.heads > kMaxHeadDim) {
    return fields.Bad("num_attention_heads", "such that a head is at most 1024 wide");
  }
  NS_ASSIGN_OR_RETURN(config.head_dim,
                      fields.Int("head_dim", 1, kMaxHeadDim, config.hidden / config.heads));
  NS_ASSIGN_OR_RETURN(config.max_positions,
                      fields.Int("max_position_embeddings", 1, kMaxPositions, int64_t{2048}));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadLlamaConfig(const JsonFields& fields, ModelConfig& config) {
  NS_RETURN_IF_ERROR(ReadShape(fields, config));
  NS_RETURN_IF_ERROR(ReadRope(fields, config));
  NS_RETURN_IF_ERROR(
      CheckHeads(config, fields.where(), "num_attention_heads", "num_key_value_heads", "head_dim"));
  NS_RETURN_IF_ERROR(fields.OneOf("hidden_act", {"silu", "swish"}, "silu").status());
  NS_ASSIGN_OR_RETURN(const double rotated,
                      fields.Number("partial_rotary_factor", 0.0, 1.0, 1.0));
  if (rotated != 1.0) return fields.Bad("partial_rotary_factor", "1");
  NS_ASSIGN_OR_RETURN(config.tied_head, fields.Bool("tie_word_embeddings", false));
  NS_ASSIGN_OR_RETURN(config.attention_bias, fields.Bool("attention_bias", false));
  NS_ASSIGN_OR_RETURN(config.mlp_bias, fields.Bool("mlp_bias", false));
  NS_ASSIGN_OR_RETURN(config.use_shared_scale, fields.Bool("use_shared_scale", false));
  NS_ASSIGN_OR_RETURN(config.norm_eps, fields.Number("rms_norm_eps", 0.0, 1.0, 1e-6));
  NS_ASSIGN_OR_RETURN(config.norm_type, fields.String("norm_type", "rms"));
  return ReadBhyt(fields, config);
}

}  // namespace normserve::model
