// SPDX-License-Identifier: Apache-2.0
// How large a model's KV cache is: by flag, or bounded by free memory.
#pragma once

#include <cstddef>
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
  uint64_t free_bytes = 0;     // 0: not known
  uint64_t default_bytes = 0;  // most that a cache takes which no flag sizes
  std::string default_name;    // "a quarter of free memory (...)"
};

// The memory that a cache on the CPU may take: by default a quarter of what is free, and at most 4 GiB.
// `promised_bytes` of the free memory are other caches', which take memory only when they are used.
void ShareMainMemory(uint64_t free_bytes, uint64_t promised_bytes, CacheRequest* request);

// The same on a GPU: by default what is left of `fraction` of its memory beside `buffer_bytes`, shared with the
// models to come.
struct DeviceMemory {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};
void ShareDeviceMemory(const DeviceMemory& memory, double fraction, uint64_t buffer_bytes,
                       size_t models_to_come, CacheRequest* request);

// Blocks to allocate. Without a flag: what max_running full contexts need, but at most default_bytes. An error
// when not even one block fits, or a flag asks more than is free.
absl::StatusOr<uint32_t> CacheBlocks(const CacheRequest& request);

}  // namespace normserve::app
