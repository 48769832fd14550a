// SPDX-License-Identifier: Apache-2.0
// Our config.json of converted nanoGPT checkpoints: `architecture` and nanoGPT's own `model_args`.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config_parts.h"

namespace normserve::model {

absl::Status ReadNanoGptConfig(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* value = fields.Find("model_args");
  if (value == nullptr || !value->is_object()) return fields.Bad("model_args", "an object");
  const JsonFields args(*value, fields.where() + ": model_args");
  const bool simple = config.architecture == Architecture::kSimpleNanoGpt;
  NS_ASSIGN_OR_RETURN(config.hidden, args.Int("n_embd", 1, kMaxWidth));
  NS_ASSIGN_OR_RETURN(config.layers, args.Int("n_layer", 1, kMaxLayers));
  NS_ASSIGN_OR_RETURN(config.heads, args.Int("n_head", 1, kMaxHeads));
  NS_ASSIGN_OR_RETURN(config.vocab, args.Int("vocab_size", 1, kMaxVocab));
  NS_ASSIGN_OR_RETURN(config.max_positions, args.Int("block_size", 1, kMaxPositions));
  if (config.hidden % config.heads != 0 || config.hidden / config.heads > kMaxHeadDim) {
    return args.Bad("n_head", absl::StrCat("a divisor of n_embd (", config.hidden,
                                           ") that leaves heads of at most ", kMaxHeadDim));
  }
  config.kv_heads = config.heads;
  config.head_dim = config.hidden / config.heads;
  config.ffn = 4 * config.hidden;
  config.rope.type = RopeType::kNone;
  config.tied_head = true;
  config.norm_eps = 1e-5;  // hard-coded in nanoGPT's LayerNorm
  // MATCHES: nanoGPT's own default is true; the SimpleNorm variant has no biases unless it says so.
  NS_ASSIGN_OR_RETURN(const bool bias, args.Bool("bias", !simple));
  config.attention_bias = bias;
  config.mlp_bias = bias;
  config.layer_norm_bias = bias && !simple;
  NS_ASSIGN_OR_RETURN(config.norm_type, args.String("norm_type", simple ? "rmsnorm" : "layernorm"));
  return CheckHeads(config, args.where(), "n_head", "n_head", "n_embd / n_head");
}

}  // namespace normserve::model
