// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json. What it accepts must have sizes that later products cannot overflow.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = normserve::model::ParseModelConfig(text, "config.json");
  if (!config.ok()) return config.status().message().empty() ? (std::abort(), 0) : 0;
  for (const int64_t value : {config->vocab, config->hidden, config->layers, config->heads, config->kv_heads,
                              config->head_dim, config->ffn, config->max_positions}) {
    if (value < 1 || value > (int64_t{1} << 31)) std::abort();
  }
  return 0;
}
