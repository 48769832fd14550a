// SPDX-License-Identifier: Apache-2.0
// Who owns which block of the paged KV cache, and which full blocks can be reused as a prefix. Host
// bookkeeping only: the keys and values themselves are the runner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace normserve::scheduler {

using BlockId = uint32_t;

// A block is free, owned (by one sequence, or by several that share a prefix), or cached: not
// owned, but its content is known and can be owned again. Cached blocks are evicted, least recently
// used first, when the free ones are used up. Used by one thread.
class BlockPool {
 public:
  // Identity of a cached chain of full blocks from position 0 on. Never reused for other content,
  // so equal identities mean equal tokens: no hash collision can serve somebody else's keys.
  using PrefixId = uint64_t;
  static constexpr PrefixId kEmptyPrefix = 0;

  // Places content in the table; tests pass a bad one to prove that only equality decides.
  using HashFunction = size_t (*)(PrefixId parent, absl::Span<const uint32_t> tokens);
  static size_t HashBlock(PrefixId parent, absl::Span<const uint32_t> tokens);

  BlockPool(uint32_t blocks, uint32_t block_size, bool prefix_cache,
            HashFunction hash = &HashBlock);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  struct Match {
    std::vector<BlockId> blocks;
    PrefixId prefix = kEmptyPrefix;
  };
  // The longest cached chain of full blocks that `tokens` begins with; the caller then owns each.
  Match AcquirePrefix(absl::Span<const uint32_t> tokens);

  // An owned block with arbitrary content; nothing when available() is 0.
  std::optional<BlockId> Allocate();
  // Gives up one ownership. Of a chain, release the last block first: then a block is never evicted
  // before those that follow it, which nobody could find any more.
  void Release(BlockId block);

  // Makes an owned block, full with `tokens` [block_size] after the chain `parent`, reusable, and
  // returns the identity of the chain that it ends. Content that is cached already keeps its block:
  // `block` then stays private and the other's identity is returned.
  PrefixId Publish(BlockId block, PrefixId parent, absl::Span<const uint32_t> tokens);
  // Nobody finds this block by prefix any more; owners keep it.
  void Forget(BlockId block);

  uint32_t total() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t used() const { return total() - available(); }
  uint32_t cached() const { return cached_; }
  uint32_t available() const { return static_cast<uint32_t>(free_.size()) + cached_; }
  uint32_t block_size() const { return block_size_; }
  uint32_t owners(BlockId block) const { return blocks_[block].owners; }

  // For tests: every block is in exactly one state and the lists agree.
  absl::Status Check() const;

 private:
  struct Key {
    PrefixId parent;
    std::vector<uint32_t> tokens;
    bool operator==(const Key& o) const { return parent == o.parent && tokens == o.tokens; }
  };
  struct KeyHash {
    HashFunction hash;
    size_t operator()(const Key& key) const { return hash(key.parent, key.tokens); }
  };
  struct Block {
    uint32_t owners = 0;
    PrefixId prefix = kEmptyPrefix;  // identity of the chain that ends here, when published
    const Key* key = nullptr;        // its entry in published_
    BlockId newer = 0, older = 0;    // neighbours in the list of cached blocks
  };

  void Link(BlockId block);
  void Unlink(BlockId block);

  const uint32_t block_size_;
  const bool prefix_cache_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::unordered_map<Key, BlockId, KeyHash> published_;
  Key probe_;  // scratch of lookups
  PrefixId last_prefix_ = kEmptyPrefix;
  uint32_t cached_ = 0;
  BlockId oldest_, newest_;  // ends of the list of cached blocks; total() = none
};

}  // namespace normserve::scheduler
