// SPDX-License-Identifier: Apache-2.0
// A checkpoint's configuration as plain data, the same struct for every architecture. Reading checks
// every type and range, so that nothing derived from it can overflow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "norm/norm_inputs.h"

namespace normserve::model {

enum class Architecture {
  kLlama,         // Hugging Face names; every BHyT-family norm, LNS, Peri-LN, DyT
  kSimpleGpt,     // torchtitan names
  kPreNorm,       // torchtitan names
  kPreQkNorm,     // torchtitan names
  kNanoGpt,       // nanoGPT names
  kSimpleNanoGpt  // our names, see tensor_names.cc
};

// "llama", "SimpleGPT", ...
std::string ArchitectureName(Architecture architecture);

enum class RopeType { kNone, kDefault, kLinear, kDynamic, kLlama3, kYarn };

// Rotary position embedding, with transformers' names and meanings.
struct RopeConfig {
  RopeType type = RopeType::kNone;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;  // 0: not given
  std::optional<double> attention_factor;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;          // 0: not given
  double mscale_all_dim = 0.0;  // 0: not given
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string file;  // for messages
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t max_positions = 0;
  bool tied_head = false;
  bool attention_bias = false;  // q, k, v and o
  bool mlp_bias = false;
  bool use_shared_scale = false;
  double norm_eps = 0.0;
  std::string norm_type;
  bool layer_norm_bias = false;
  norm::BhytOptions bhyt;
  RopeConfig rope;
  std::vector<uint32_t> eos_token_ids;  // config.json and generation_config.json, united, in order
  std::optional<uint32_t> bos_token_id;
};

// Reads `directory`/config.json and, if there is one, generation_config.json.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory);

// The same from text; `file` opens each message.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text, const std::string& file);

}  // namespace normserve::model
