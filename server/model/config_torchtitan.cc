// SPDX-License-Identifier: Apache-2.0
// Our config.json of converted torchtitan checkpoints: `architecture` and `model_args`, the fields of
// its ModelArgs. Keys that only matter in training are not read.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config_parts.h"

namespace normserve::model {
namespace {

// MATCHES: truncated twice, then rounded up: int(mult * int(2 * 4 * dim / 3)) to a multiple.
int64_t FfnWidth(int64_t dim, double multiplier, int64_t multiple_of) {
  const int64_t base = 8 * dim / 3;
  const int64_t scaled = static_cast<int64_t>(multiplier * static_cast<double>(base));
  return multiple_of * ((scaled + multiple_of - 1) / multiple_of);
}

absl::Status ReadFfn(const JsonFields& args, ModelConfig& config) {
  NS_ASSIGN_OR_RETURN(const int64_t multiple_of,
                      args.Int("multiple_of", 1, kMaxFfn, int64_t{256}));
  const bool scaled = args.Has("ffn_dim_multiplier");
  NS_ASSIGN_OR_RETURN(const double multiplier,
                      args.Number("ffn_dim_multiplier", 1e-6, 1e3, 1.0));
  config.ffn = scaled ? FfnWidth(config.hidden, multiplier, multiple_of)
                      : FfnWidth(config.hidden, 1.0, multiple_of);
  if (config.ffn < 1 || config.ffn > kMaxFfn) {
    return args.Bad(scaled ? "ffn_dim_multiplier" : "multiple_of",
                    absl::StrCat("such that the feed-forward width is from 1 to ", kMaxFfn,
                                 ", not ", config.ffn));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTorchtitanConfig(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* value = fields.Find("model_args");
  if (value == nullptr || !value->is_object()) return fields.Bad("model_args", "an object");
  const JsonFields args(*value, fields.where() + ": model_args");
  NS_ASSIGN_OR_RETURN(config.hidden, args.Int("dim", 1, kMaxWidth));
  NS_ASSIGN_OR_RETURN(config.layers, args.Int("n_layers", 1, kMaxLayers));
  NS_ASSIGN_OR_RETURN(config.heads, args.Int("n_heads", 1, kMaxHeads));
  NS_ASSIGN_OR_RETURN(config.kv_heads, args.Int("n_kv_heads", 1, kMaxHeads, config.heads));
  NS_ASSIGN_OR_RETURN(config.vocab, args.Int("vocab_size", 1, kMaxVocab));
  if (config.hidden % config.heads != 0 || config.hidden / config.heads > kMaxHeadDim) {
    return args.Bad("n_heads", absl::StrCat("a divisor of dim (", config.hidden,
                                            ") that leaves heads of at most ", kMaxHeadDim));
  }
  config.head_dim = config.hidden / config.heads;
  NS_RETURN_IF_ERROR(ReadFfn(args, config));
  config.rope.type = RopeType::kDefault;
  NS_ASSIGN_OR_RETURN(config.rope.theta, args.Number("rope_theta", 1.0 + 1e-6, 1e15, 10000.0));
  // MATCHES: the code's table has twice as many positions, but it refuses more than max_seq_len tokens.
  NS_ASSIGN_OR_RETURN(config.max_positions,
                      args.Int("max_seq_len", 1, kMaxPositions, int64_t{2048}));
  NS_ASSIGN_OR_RETURN(config.norm_eps, args.Number("norm_eps", 0.0, 1.0, 1e-5));
  NS_ASSIGN_OR_RETURN(config.norm_type, args.String("norm_type", "rmsnorm"));
  return CheckHeads(config, args.where(), "n_heads", "n_kv_heads", "head_dim");
}

}  // namespace normserve::model
