// SPDX-License-Identifier: Apache-2.0
#include "kernels/read_ahead.h"

#include <unistd.h>

#include <algorithm>

namespace normserve::kernels {
namespace {

// Done before the layer is: its last lines are on their way when attention begins.
constexpr double kPace = 1.2;
constexpr size_t kUnknownCacheBytes = size_t{8} << 20;

thread_local ReadAhead* current = nullptr;

}  // namespace

// Not if it is there already, since sequences may share some, nor if it is none of the cache's.
void ReadAhead::AddBlock(int32_t block) {
  const size_t index = static_cast<size_t>(block);
  if (index >= added_.size() || added_[index]) return;
  added_[index] = true;
  blocks_.push_back(block);
}

void ReadAhead::Plan(const ReadAheadStep& step) {
  blocks_.clear();
  runs_.clear();
  planned_ = total_ = 0;
  multiplied_.store(0, std::memory_order_relaxed);
  added_.assign(static_cast<size_t>(step.blocks), false);
  const size_t most = step.block_bytes == 0 ? 0 : most_bytes_ / (2 * step.block_bytes);
  for (int64_t t = 0; t < step.tokens && blocks_.size() < most; ++t) {
    const int32_t sequence = step.token_sequence[t], position = step.positions[t];
    if (sequence < 0 || sequence >= step.sequences || position < 0) continue;
    // The last of a sequence's tokens sees what the others see.
    if (t + 1 < step.tokens && step.token_sequence[t + 1] == sequence) continue;
    const int32_t* table = step.block_tables + sequence * step.block_tables_stride;
    const int64_t count = std::min(position / step.block_size + 1, step.max_blocks);
    for (int64_t b = 0; b < count && blocks_.size() < most; ++b) AddBlock(table[b]);
  }
  std::sort(blocks_.begin(), blocks_.end());  // neighbours make one run
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i == 0 || blocks_[i] != blocks_[i - 1] + 1) {
      runs_.push_back({planned_, static_cast<size_t>(blocks_[i]) * step.block_bytes});
    }
    planned_ += step.block_bytes;
  }
}

void ReadAhead::Aim(const void* keys, const void* values) {
  keys_ = static_cast<const char*>(keys);
  values_ = static_cast<const char*>(values);
  total_ = 2 * planned_;
  next_.store(0, std::memory_order_relaxed);
  const size_t multiplied = multiplied_.exchange(0, std::memory_order_relaxed);
  if (multiplied > 0) layer_weights_ = multiplied;
  per_weight_ = layer_weights_ == 0 ? 0.0 : kPace * static_cast<double>(total_) / static_cast<double>(layer_weights_);
}

void ReadAhead::AimAtNothing() {
  total_ = 0;
  keys_ = values_ = nullptr;
}

ReadAhead::Lines ReadAhead::Take(size_t weights, size_t unit, size_t most) {
  if (most == 0) return {};
  const size_t multiplied = multiplied_.fetch_add(weights, std::memory_order_relaxed) + weights;
  size_t at = next_.load(std::memory_order_relaxed);
  if (at >= total_) return {};
  const double paced = per_weight_ * static_cast<double>(multiplied);
  const size_t due = per_weight_ == 0.0 || paced >= static_cast<double>(total_) ? total_ : static_cast<size_t>(paced);
  while (at < due) {
    const size_t units = due == total_ ? (due - at + unit - 1) / unit : (due - at) / unit;
    const size_t first = at < planned_ ? 0 : planned_;  // of the keys, or of the values
    const auto later = std::upper_bound(runs_.begin(), runs_.end(), at - first,
                                        [](size_t place, const Run& run) { return place < run.at; });
    const Run& run = *(later - 1);
    // Not past the run's end: what comes then lies elsewhere.
    const size_t run_end = first + (later == runs_.end() ? planned_ : later->at);
    const size_t end = std::min(at + std::min(units, most) * unit, run_end);
    if (end == at) return {};
    if (next_.compare_exchange_weak(at, end, std::memory_order_relaxed)) {
      return {(first == 0 ? keys_ : values_) + run.begin + (at - first - run.at), end - at};
    }
  }
  return {};
}

size_t MostReadAheadBytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return static_cast<size_t>(bytes) / 4;
#endif
  return kUnknownCacheBytes / 4;
}

ScopedReadAhead::ScopedReadAhead(ReadAhead* ahead) : previous_(current) { current = ahead; }
ScopedReadAhead::~ScopedReadAhead() { current = previous_; }
ReadAhead* CurrentReadAhead() { return current; }

}  // namespace normserve::kernels
