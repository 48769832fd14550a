// SPDX-License-Identifier: Apache-2.0
// One request as the scheduler sees it: tokens, how many of them are computed, and the blocks that
// hold their keys and values. Plain data; the Scheduler is the only writer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batch.h"
#include "scheduler/block_pool.h"

namespace normserve::scheduler {

// One point of priority is worth this much waiting. Waiting thereby raises every request's rank at
// the same rate, and none waits for ever behind later ones of higher priority.
inline constexpr absl::Duration kWaitingPerPriorityPoint = absl::Seconds(1);

struct Sequence {
  SequenceId id = 0;             // grows with arrival
  std::vector<uint32_t> tokens;  // prompt, then generated, then during a step `drafts` guesses
  uint32_t prompt_tokens = 0;
  uint32_t drafts = 0;
  uint32_t max_tokens = 0;  // of prompt and generated ones, ever
  absl::Time rank;  // arrival, moved by priority; smaller goes first, then the smaller id
  // Scoring: the token whose score is next; the rows before it are done or not wanted.
  std::optional<uint32_t> next_target;

  bool running = false;
  bool preempted = false;  // waits to be resumed
  uint32_t computed = 0;   // tokens whose keys and values are in `blocks`
  uint32_t planned = 0;    // tokens of the current step
  uint32_t counted = 0;    // prompt tokens ever computed or found, to count none twice
  std::vector<BlockId> blocks;
  uint32_t published_blocks = 0;  // prefix of `blocks` that was offered to the prefix cache
  BlockPool::PrefixId prefix = BlockPool::kEmptyPrefix;  // identity of that prefix

  bool scoring() const { return next_target.has_value(); }
  uint32_t known() const { return static_cast<uint32_t>(tokens.size()) - drafts; }
  // Tokens to compute before there is nothing to do: the last scored token is a target only.
  uint32_t end() const { return known() - (scoring() ? 1 : 0); }
  uint32_t remaining() const { return end() - computed; }
  // The first position whose logits are (still) wanted.
  uint32_t first_row() const { return scoring() ? *next_target - 1 : end() - 1; }
  bool decoding() const { return known() > prompt_tokens && remaining() == 1; }

  static bool Before(const Sequence& a, const Sequence& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
  }
};

}  // namespace normserve::scheduler
