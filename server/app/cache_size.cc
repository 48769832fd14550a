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
    const uint64_t most = std::min(request.free_bytes / 4, kDefaultMostBytes);
    blocks = std::min(context_blocks * request.max_running, most / block_bytes);
    what = absl::StrCat("a quarter of free memory (", FormatByteSize(request.free_bytes), ")");
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
