// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/batch_builder.h"
#include "scheduler/prompt_lookup.h"

namespace normserve::scheduler {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pool_(options.blocks, options.block_size, options.prefix_cache) {}

void Scheduler::Add(SequenceId id, std::vector<uint32_t> tokens, int32_t priority,
                    absl::Time arrival, std::optional<uint32_t> score_from, uint32_t max_tokens) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->prompt_tokens = static_cast<uint32_t>(tokens.size());
  s->tokens = std::move(tokens);
  s->rank = arrival - priority * kWaitingPerPriorityPoint;
  s->next_target = score_from;
  s->max_tokens = max_tokens;
  waiting_.insert(KeyOf(*s));
  sequences_.emplace(id, std::move(s));
}

const Plan& Scheduler::Schedule() {
  plan_.admitted.clear();
  plan_.preempted = 0;
  budget_ = options_.max_step_tokens;
  for (Sequence* s : running_) s->planned = 0;
  const std::vector<Sequence*> order = running_;  // Reserve may preempt, which changes running_
  for (Sequence* s : order) {
    if (s->running && s->remaining() == 1) Reserve(*s);
  }
  LimitPrefill();
  for (Sequence* s : order) {
    if (s->running && s->remaining() > 1) Reserve(*s);
  }
  const uint32_t max_running = std::min(options_.max_running, options_.max_step_tokens);
  // Not right after a preemption: the blocks that it freed are for those that run.
  while (plan_.preempted == 0 && budget_ > 0 && running_.size() < max_running &&
         !waiting_.empty()) {
    // No overtaking of a head that does not fit yet, else large requests would starve.
    if (!TryAdmit(*sequences_.at(std::get<SequenceId>(*waiting_.begin())))) break;
  }
  AddDrafts();
  FillPlan();
  return plan_;
}

// After the decode rows have their share of the budget: what prompts may take of it, so that they do not
// make the step, and with it the next token of all that decode, wait too long.
void Scheduler::LimitPrefill() {
  const uint32_t rows = options_.max_step_tokens - budget_;
  const bool mixed = std::any_of(running_.begin(), running_.end(), [](const Sequence* s) {
    return s->planned > 0 && s->decoding();
  });
  if (options_.max_mixed_step_tokens == 0 || !mixed) return;
  const uint32_t left = options_.max_mixed_step_tokens - std::min(rows, options_.max_mixed_step_tokens);
  budget_ = std::min(budget_, std::max(left, kLeastPrefill));
}

// Guesses never take a block or a row that anything else could use in this step.
void Scheduler::AddDrafts() {
  if (options_.draft_tokens == 0) return;
  uint32_t rows = 0, decoding = 0;
  for (const Sequence* s : running_) {
    rows += s->planned;
    decoding += s->planned > 0 && s->decoding() ? 1 : 0;
  }
  if (decoding == 0 || rows >= kFreeRows) return;
  const uint32_t share = std::min((kFreeRows - rows) / decoding, options_.draft_tokens);
  for (Sequence* s : running_) {
    if (s->planned > 0 && s->decoding()) AddDrafts(*s, std::min(share, budget_));
  }
}

void Scheduler::AddDrafts(Sequence& s, uint32_t count) {
  if (s.known() + 1 >= s.max_tokens) return;
  count = std::min(count, s.max_tokens - s.known() - 1);
  std::vector<uint32_t> guesses = LookUpNext(s.tokens, count);
  const auto room = [&] {
    return static_cast<uint32_t>(s.blocks.size()) * options_.block_size - s.computed - s.planned;
  };
  while (room() < guesses.size() && pool_.available() > 0) s.blocks.push_back(*pool_.Allocate());
  guesses.resize(std::min<size_t>(guesses.size(), room()));
  s.drafts = static_cast<uint32_t>(guesses.size());
  s.tokens.insert(s.tokens.end(), guesses.begin(), guesses.end());
  s.planned += s.drafts;
  budget_ -= s.drafts;
}

uint32_t Scheduler::BlocksFor(uint32_t tokens) const {
  return (tokens + options_.block_size - 1) / options_.block_size;
}

// Gives `s` as many tokens as budget and blocks allow. Blocks are taken from the last-ranked
// running sequences where need be; one without any that ranks lower keeps what it has and sits this
// step out.
void Scheduler::Reserve(Sequence& s) {
  const uint32_t want = std::min(s.remaining(), budget_);
  if (want == 0) return;
  const uint32_t have = static_cast<uint32_t>(s.blocks.size());
  const uint32_t need = std::max(BlocksFor(s.computed + want), have) - have;
  while (pool_.available() < need && running_.back() != &s) Preempt(*running_.back());
  for (uint32_t i = 0; i < need; ++i) {
    const std::optional<BlockId> block = pool_.Allocate();
    if (!block) break;
    s.blocks.push_back(*block);
  }
  const uint32_t room = static_cast<uint32_t>(s.blocks.size()) * options_.block_size - s.computed;
  s.planned = std::min(want, room);
  budget_ -= s.planned;
}

// Blocks that the running ones will take for what they have to compute, and for one block of growth
// each. A newcomer that took them would be preempted soon, and its work lost.
uint32_t Scheduler::DemandOfRunning() const {
  uint32_t blocks = 0;
  for (const Sequence* s : running_) {
    const uint32_t have = static_cast<uint32_t>(s->blocks.size());  // maybe more: guesses that failed
    blocks += std::max(BlocksFor(s->end() + options_.block_size), have) - have;
  }
  return blocks;
}

bool Scheduler::TryAdmit(Sequence& s) {
  BlockPool::Match match =
      pool_.AcquirePrefix(absl::MakeConstSpan(s.tokens).subspan(0, s.first_row()));
  const uint32_t found = static_cast<uint32_t>(match.blocks.size());
  s.blocks = std::move(match.blocks);
  s.published_blocks = found;
  s.prefix = match.prefix;
  const uint32_t fresh = BlocksFor(s.end()) - found;
  if (!running_.empty() && fresh + DemandOfRunning() > pool_.available()) {
    ReleaseBlocks(s);
    return false;
  }
  waiting_.erase(KeyOf(s));
  s.computed = found * options_.block_size;
  s.running = true;
  const bool resumed = std::exchange(s.preempted, false);
  if (!resumed) s.counted = s.computed;
  plan_.admitted.push_back({s.id, resumed, s.prompt_tokens, s.computed});
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s,
                                   [](const Sequence* a, const Sequence* b) {
                                     return Sequence::Before(*a, *b);
                                   }),
                  &s);
  Reserve(s);
  return true;
}

void Scheduler::Preempt(Sequence& s) {
  ReleaseBlocks(s);
  budget_ += std::exchange(s.planned, 0);
  s.computed = 0;
  s.running = false;
  s.preempted = true;
  running_.erase(std::find(running_.begin(), running_.end(), &s));
  waiting_.insert(KeyOf(s));
  ++plan_.preempted;
}

void Scheduler::ReleaseBlocks(Sequence& s) {
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block) pool_.Release(*block);
  s.blocks.clear();
  s.published_blocks = 0;
  s.prefix = BlockPool::kEmptyPrefix;
}

void Scheduler::FillPlan() {
  step_.clear();
  plan_.sequences.clear();
  plan_.prompt_tokens = plan_.prefill_tokens = plan_.decode_tokens = plan_.draft_tokens = 0;
  for (Sequence* s : running_) {
    if (s->planned == 0) continue;
    step_.push_back(s);
    (s->decoding() ? plan_.decode_tokens : plan_.prefill_tokens) += s->planned;
    plan_.draft_tokens += s->drafts;
    const uint32_t reached = std::min(s->computed + s->planned, s->prompt_tokens);
    if (reached > s->counted) {
      plan_.prompt_tokens += reached - s->counted;
      s->counted = reached;
    }
  }
  std::stable_partition(step_.begin(), step_.end(),
                        [](const Sequence* s) { return s->decoding(); });
  for (const Sequence* s : step_) plan_.sequences.push_back(s->id);
  BuildBatch(step_, options_.block_size, plan_.batch);
}

const std::vector<bool>& Scheduler::Commit(absl::Span<const RowOutcome> outcomes) {
  holds_.assign(outcomes.size(), true);
  size_t row = 0;
  for (Sequence* s : step_) {
    const uint32_t known = s->known(), drafts = std::exchange(s->drafts, 0);
    s->computed += std::exchange(s->planned, 0) - drafts;
    const size_t first = row;
    bool finite = true;
    for (; row < outcomes.size() && plan_.batch.logits_sequence[row] == s->id; ++row) {
      const size_t guess = row - first;  // the row computed from it, for guess >= 1
      if (drafts > 0 && guess > 0) {
        holds_[row] = finite && holds_[row - 1] &&
                      outcomes[row - 1].token == s->tokens[known + guess - 1];
      }
      if (holds_[row]) finite = finite && outcomes[row].finite;
    }
    s->tokens.resize(known);
    if (row == first) continue;
    if (!finite) {
      for (BlockId block : s->blocks) pool_.Forget(block);
      continue;
    }
    if (s->scoring()) {
      *s->next_target += static_cast<uint32_t>(row - first);
    } else {
      for (size_t i = first; i < row && holds_[i]; ++i) s->tokens.push_back(outcomes[i].token);
      s->computed = static_cast<uint32_t>(s->tokens.size()) - 1;
    }
    PublishBlocks(*s);
  }
  step_.clear();
  return holds_;
}

void Scheduler::PublishBlocks(Sequence& s) {
  if (!options_.prefix_cache) return;
  const uint32_t size = options_.block_size;
  for (; (s.published_blocks + 1) * size <= s.computed; ++s.published_blocks) {
    const uint32_t index = s.published_blocks;
    s.prefix = pool_.Publish(s.blocks[index], s.prefix,
                             absl::MakeConstSpan(s.tokens).subspan(index * size, size));
  }
}

void Scheduler::Finish(SequenceId id) {
  auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& s = *found->second;
  ReleaseBlocks(s);
  if (s.running) {
    running_.erase(std::find(running_.begin(), running_.end(), &s));
    step_.erase(std::remove(step_.begin(), step_.end(), &s), step_.end());
  } else {
    waiting_.erase(KeyOf(s));
  }
  sequences_.erase(found);
}

absl::Status Scheduler::Check() const {
  std::vector<uint32_t> owners(pool_.total(), 0);
  for (const auto& [id, s] : sequences_) {
    if (!s->running && !s->blocks.empty()) {
      return absl::InternalError(absl::StrCat("waiting sequence ", id, " owns blocks"));
    }
    if (s->computed > s->blocks.size() * options_.block_size) {
      return absl::InternalError(absl::StrCat("sequence ", id, " has more tokens than blocks"));
    }
    for (BlockId block : s->blocks) ++owners[block];
  }
  for (BlockId block = 0; block < pool_.total(); ++block) {
    if (owners[block] != pool_.owners(block)) {
      return absl::InternalError(absl::StrCat("block ", block, " has ", pool_.owners(block),
                                              " owners, sequences own it ", owners[block],
                                              " times"));
    }
  }
  return pool_.Check();
}

}  // namespace normserve::scheduler
