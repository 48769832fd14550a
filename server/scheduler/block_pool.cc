// SPDX-License-Identifier: Apache-2.0
#include "scheduler/block_pool.h"

#include "absl/strings/str_cat.h"

namespace normserve::scheduler {

size_t BlockPool::HashBlock(PrefixId parent, absl::Span<const uint32_t> tokens) {
  uint64_t h = parent * 0x9E3779B97F4A7C15u + 1;
  for (uint32_t token : tokens) {
    h = (h ^ token) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  }
  return static_cast<size_t>(h);
}

BlockPool::BlockPool(uint32_t blocks, uint32_t block_size, bool prefix_cache, HashFunction hash)
    : block_size_(block_size),
      prefix_cache_(prefix_cache),
      blocks_(blocks),
      published_(/*bucket_count=*/16, KeyHash{hash}),
      oldest_(blocks),
      newest_(blocks) {
  free_.reserve(blocks);
  // Low numbers are handed out first: a small load touches little of the cache's memory.
  for (uint32_t i = blocks; i > 0; --i) free_.push_back(i - 1);
}

BlockPool::Match BlockPool::AcquirePrefix(absl::Span<const uint32_t> tokens) {
  Match match;
  if (!prefix_cache_) return match;
  for (size_t begin = 0; begin + block_size_ <= tokens.size(); begin += block_size_) {
    probe_.parent = match.prefix;
    probe_.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + block_size_);
    auto found = published_.find(probe_);
    if (found == published_.end()) break;
    Block& block = blocks_[found->second];
    if (block.owners++ == 0) Unlink(found->second);
    match.blocks.push_back(found->second);
    match.prefix = block.prefix;
  }
  return match;
}

std::optional<BlockId> BlockPool::Allocate() {
  if (free_.empty()) {
    if (oldest_ == total()) return std::nullopt;
    const BlockId evicted = oldest_;
    Forget(evicted);  // moves it to the free ones
  }
  const BlockId block = free_.back();
  free_.pop_back();
  blocks_[block].owners = 1;
  return block;
}

void BlockPool::Release(BlockId block) {
  if (--blocks_[block].owners > 0) return;
  if (blocks_[block].key != nullptr) {
    Link(block);
  } else {
    free_.push_back(block);
  }
}

BlockPool::PrefixId BlockPool::Publish(BlockId block, PrefixId parent,
                                       absl::Span<const uint32_t> tokens) {
  if (!prefix_cache_) return kEmptyPrefix;
  auto [entry, inserted] =
      published_.try_emplace(Key{parent, {tokens.begin(), tokens.end()}}, block);
  if (!inserted) return blocks_[entry->second].prefix;
  blocks_[block].prefix = ++last_prefix_;
  blocks_[block].key = &entry->first;
  return last_prefix_;
}

void BlockPool::Forget(BlockId block) {
  Block& b = blocks_[block];
  if (b.key == nullptr) return;
  published_.erase(published_.find(*b.key));
  b.key = nullptr;
  b.prefix = kEmptyPrefix;
  if (b.owners == 0) {
    Unlink(block);
    free_.push_back(block);
  }
}

void BlockPool::Link(BlockId block) {
  Block& b = blocks_[block];
  b.newer = total();
  b.older = newest_;
  (newest_ == total() ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++cached_;
}

void BlockPool::Unlink(BlockId block) {
  const Block& b = blocks_[block];
  (b.newer == total() ? newest_ : blocks_[b.newer].older) = b.older;
  (b.older == total() ? oldest_ : blocks_[b.older].newer) = b.newer;
  --cached_;
}

absl::Status BlockPool::Check() const {
  std::vector<uint32_t> seen(total(), 0);
  for (BlockId block : free_) {
    ++seen[block];
    if (blocks_[block].owners > 0 || blocks_[block].key != nullptr) {
      return absl::InternalError(absl::StrCat("free block ", block, " is owned or published"));
    }
  }
  uint32_t listed = 0;
  for (BlockId block = oldest_; block != total(); block = blocks_[block].newer) {
    ++seen[block];
    ++listed;
    if (blocks_[block].owners > 0 || blocks_[block].key == nullptr) {
      return absl::InternalError(absl::StrCat("cached block ", block, " is owned or unpublished"));
    }
  }
  if (listed != cached_) {
    return absl::InternalError(absl::StrCat("list has ", listed, ", count is ", cached_));
  }
  uint32_t published = 0;
  for (BlockId block = 0; block < total(); ++block) {
    seen[block] += blocks_[block].owners > 0 ? 1 : 0;
    if (seen[block] != 1) {
      return absl::InternalError(absl::StrCat("block ", block, " is in ", seen[block], " states"));
    }
    published += blocks_[block].key != nullptr ? 1 : 0;
  }
  if (published != published_.size()) {
    return absl::InternalError(
        absl::StrCat(published, " blocks are published, table has ", published_.size()));
  }
  return absl::OkStatus();
}

}  // namespace normserve::scheduler
