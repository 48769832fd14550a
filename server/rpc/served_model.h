// SPDX-License-Identifier: Apache-2.0
// What the services know of one loaded model: plain data and the objects that main owns. No torch,
// no grpc, so that tests put a fake runner behind the same services.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace normserve::rpc {

// What GetModel says; filled at load, constant after.
struct ModelCard {
  struct Norm {
    std::optional<uint32_t> layer;  // absent: embed_out and final
    std::string site;
    std::string norm;
  };
  std::string name;
  std::string architecture;
  std::string norm_type;
  uint64_t parameter_count = 0;
  std::string dtype;
  std::string kv_cache_dtype;
  std::string quantization;
  std::string head_quantization;
  std::string device;
  uint32_t layer_count = 0;
  uint32_t hidden_size = 0;
  uint64_t weight_bytes = 0;
  uint64_t kv_cache_bytes = 0;
  uint64_t kv_cache_tokens = 0;
  std::vector<Norm> norms;
  std::vector<std::string> folded;
  std::vector<std::string> notes;
};

// What an absent request field takes: generation_config.json's values (checked at load), then the
// server's own.
struct GenerationDefaults {
  bool do_sample = false;  // false: an absent temperature is 0, whatever `temperature` says
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<uint32_t> max_new_tokens;
  std::optional<uint32_t> max_length;  // prompt and output together
  std::optional<uint32_t> min_new_tokens;
  uint32_t server_max_new_tokens = 256;
  std::vector<uint32_t>
      eos_token_ids;  // config, generation_config and tokenizer united; < vocab_size
};

// The pointers outlive the server that uses this. Immutable; any thread.
struct ServedModel {
  ModelCard card;
  GenerationDefaults defaults;
  engine::Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;  // null: token ids only
  engine::EngineObserver* observer = nullptr;  // for requests refused before the engine
};

}  // namespace normserve::rpc
