// SPDX-License-Identifier: Apache-2.0
// How large a model's KV cache is: by flag, or bounded by free memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace normserve::app {

struct CacheRequest {
  std::optional<uint64_t> tokens;        // --kv-cache-tokens
  std::optional<uint64_t> memory_bytes;  // --kv-cache-memory
  uint64_t bytes_per_token = 0;
  uint32_t block_size = 0;
  uint64_t max_context_tokens = 0;
  uint32_t max_running = 0;
  uint64_t free_bytes = 0;
};

// Blocks to allocate. Without a flag: what max_running full contexts need, but at most a quarter of
// free memory and at most 4 GiB. An error when not even one block fits, or a flag asks more than is
// free.
absl::StatusOr<uint32_t> CacheBlocks(const CacheRequest& request);

}  // namespace normserve::app
