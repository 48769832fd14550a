// SPDX-License-Identifier: Apache-2.0
#include "app/cache_size.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "app/byte_size.h"

namespace normserve::app {
namespace {

constexpr uint64_t kDefaultMostBytes = uint64_t{4} << 30;

}  // namespace

void ShareMainMemory(uint64_t free_bytes, uint64_t promised_bytes, CacheRequest* request) {
  const uint64_t least = std::min<uint64_t>(free_bytes, 1);  // 0 stays "not known"
  request->free_bytes = free_bytes > promised_bytes ? free_bytes - promised_bytes : least;
  request->default_bytes = std::min(request->free_bytes / 4, kDefaultMostBytes);
  request->default_name = absl::StrCat("a quarter of free memory (", FormatByteSize(request->free_bytes), ")");
}

void ShareDeviceMemory(const DeviceMemory& memory, double fraction, uint64_t buffer_bytes,
                       size_t models_to_come, CacheRequest* request) {
  const uint64_t used = memory.total_bytes - memory.free_bytes + buffer_bytes;
  const uint64_t most = static_cast<uint64_t>(fraction * static_cast<double>(memory.total_bytes));
  request->free_bytes = std::max<uint64_t>(memory.free_bytes - std::min(memory.free_bytes, buffer_bytes), 1);
  request->default_bytes = most > used ? (most - used) / (models_to_come + 1) : 0;
  request->default_name = absl::StrCat("--memory-fraction ", fraction, " of ", FormatByteSize(memory.total_bytes),
                                       ", of which ", FormatByteSize(used), " are used");
}

absl::StatusOr<uint32_t> CacheBlocks(const CacheRequest& request) {
  const uint64_t block_bytes = request.bytes_per_token * request.block_size;
  const uint64_t context_blocks =
      (request.max_context_tokens + request.block_size - 1) / request.block_size;
  uint64_t blocks = 0;
  std::string what;
  if (request.tokens) {
    blocks = (*request.tokens + request.block_size - 1) / request.block_size;
    what = absl::StrCat("--kv-cache-tokens ", *request.tokens);
  } else if (request.memory_bytes) {
    blocks = *request.memory_bytes / block_bytes;
    what = absl::StrCat("--kv-cache-memory ", FormatByteSize(*request.memory_bytes));
  } else {
    blocks = std::min(context_blocks * request.max_running, request.default_bytes / block_bytes);
    what = request.default_name;
  }
  if (blocks == 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": holds no KV cache block; one of ",
                                                   request.block_size, " tokens takes ",
                                                   FormatByteSize(block_bytes)));
  }
  constexpr uint64_t kMostBytes = std::numeric_limits<uint64_t>::max();
  const uint64_t free_bytes = request.free_bytes > 0 ? request.free_bytes : kMostBytes;
  if (blocks > free_bytes / block_bytes) {
    const uint64_t needed = blocks > kMostBytes / block_bytes ? kMostBytes : blocks * block_bytes;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": takes ", FormatByteSize(needed), ", more than the free memory of ",
                     FormatByteSize(free_bytes), "; allowed: at most ",
                     free_bytes / block_bytes * request.block_size, " tokens"));
  }
  // Slots are int32 in a batch.
  const uint64_t most_blocks = std::numeric_limits<int32_t>::max() / request.block_size;
  return static_cast<uint32_t>(std::min(blocks, most_blocks));
}

}  // namespace normserve::app
