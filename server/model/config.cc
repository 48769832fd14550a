// SPDX-License-Identifier: Apache-2.0
// Which family a config belongs to, and the keys that all families share.
#include "model/config.h"

#include <algorithm>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/status_macros.h"
#include "model/config_parts.h"

namespace normserve::model {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;

absl::Status AddEos(const JsonFields& fields, ModelConfig& config) {
  NS_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                      fields.IntOrList("eos_token_id", 0, kMaxTokenId));
  for (int64_t id : ids) {
    const uint32_t eos = static_cast<uint32_t>(id);
    auto& known = config.eos_token_ids;
    if (std::find(known.begin(), known.end(), eos) == known.end()) known.push_back(eos);
  }
  return absl::OkStatus();
}

absl::Status ReadArchitecture(const JsonFields& fields, ModelConfig& config) {
  if (!fields.Has("architecture")) {
    NS_ASSIGN_OR_RETURN(const std::string model_type, fields.String("model_type", ""));
    if (model_type != "llama") {
      return fields.Bad("model_type",
                        "llama (or the key architecture: SimpleGPT, PreNormTransformer, "
                        "PreQKNormTransformer, nanogpt, simple_nanogpt)");
    }
    config.architecture = Architecture::kLlama;
    return ReadLlamaConfig(fields, config);
  }
  // torchtitan's class is spelled PrenormTransformer; both spellings are taken.
  NS_ASSIGN_OR_RETURN(const std::string name,
                      fields.OneOf("architecture",
                                   {"SimpleGPT", "PreNormTransformer", "PrenormTransformer",
                                    "PreQKNormTransformer", "nanogpt", "simple_nanogpt"},
                                   ""));
  if (name == "nanogpt" || name == "simple_nanogpt") {
    config.architecture =
        name == "nanogpt" ? Architecture::kNanoGpt : Architecture::kSimpleNanoGpt;
    return ReadNanoGptConfig(fields, config);
  }
  config.architecture = name == "SimpleGPT"              ? Architecture::kSimpleGpt
                        : name == "PreQKNormTransformer" ? Architecture::kPreQkNorm
                                                         : Architecture::kPreNorm;
  return ReadTorchtitanConfig(fields, config);
}

}  // namespace

std::string ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama: return "llama";
    case Architecture::kSimpleGpt: return "SimpleGPT";
    case Architecture::kPreNorm: return "PreNormTransformer";
    case Architecture::kPreQkNorm: return "PreQKNormTransformer";
    case Architecture::kNanoGpt: return "nanogpt";
    case Architecture::kSimpleNanoGpt: return "simple_nanogpt";
  }
  return "unknown";
}

absl::Status CheckHeads(const ModelConfig& config, const std::string& where, const char* heads_key,
                        const char* kv_heads_key, const char* head_dim_key) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
  };
  if (config.heads % config.kv_heads != 0) {
    return bad(absl::StrCat(kv_heads_key, " is ", config.kv_heads, "; allowed: a divisor of ",
                            heads_key, " (", config.heads, ")"));
  }
  if (config.rope.type != RopeType::kNone && config.head_dim % 2 != 0) {
    return bad(absl::StrCat(head_dim_key, " is ", config.head_dim,
                            "; allowed: an even number, as rotary pairs need"));
  }
  if (config.heads * config.head_dim > kMaxWidth) {
    return bad(absl::StrCat(heads_key, " * ", head_dim_key, " is ", config.heads * config.head_dim,
                            "; allowed: at most ", kMaxWidth));
  }
  if (config.rope.type != RopeType::kNone &&
      config.max_positions * config.head_dim > kMaxRopeTable) {
    return bad(absl::StrCat("the position limit ", config.max_positions, " times ", head_dim_key,
                            " ", config.head_dim, " exceeds ", kMaxRopeTable));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text, const std::string& file) {
  NS_ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJsonObject(text, file));
  const JsonFields fields(parsed, file);
  ModelConfig config;
  config.file = file;
  if (fields.Has("quantization_config")) {
    return fields.Bad("quantization_config", "absent; quantized checkpoints are not served");
  }
  NS_RETURN_IF_ERROR(ReadArchitecture(fields, config));
  NS_RETURN_IF_ERROR(AddEos(fields, config));
  if (fields.Has("bos_token_id")) {
    NS_ASSIGN_OR_RETURN(const int64_t bos, fields.Int("bos_token_id", 0, kMaxTokenId));
    config.bos_token_id = static_cast<uint32_t>(bos);
  }
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string file = directory + "/config.json";
  NS_ASSIGN_OR_RETURN(const std::string text, base::ReadRegularFile(file, kMaxConfigBytes));
  NS_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, file));
  const std::string generation = directory + "/generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(generation, error)) {
    NS_ASSIGN_OR_RETURN(const std::string more, base::ReadRegularFile(generation, kMaxConfigBytes));
    NS_ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJsonObject(more, generation));
    NS_RETURN_IF_ERROR(AddEos(JsonFields(parsed, generation), config));
  }
  return config;
}

}  // namespace normserve::model
