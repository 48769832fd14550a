// SPDX-License-Identifier: Apache-2.0
// A model without a model: logits are a pure function of the token history that a row reads through
// its block table, out of a simulated KV cache. A block that is shared, freed or reused wrongly
// therefore changes the output, as it would with real keys and values.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/runner.h"
#include "engine/sampler.h"

namespace normserve::engine {

// Settable before the engine starts. Hooks run on the engine thread.
struct FakeRunnerOptions {
  RunnerInfo info{/*vocab_size=*/258, /*max_context_tokens=*/256, /*block_size=*/4, /*blocks=*/64};
  // Every row that attends to this token is NaN.
  std::optional<uint32_t> poison;
  // Called first when a step is finished; an error fails the step.
  std::function<absl::Status(const scheduler::Batch&)> before_step;
  // Rewrites a row of logits, given all tokens up to it.
  std::function<void(const std::vector<uint32_t>& history, std::vector<float>& logits)> edit;
};

class FakeRunner final : public Runner {
 public:
  explicit FakeRunner(FakeRunnerOptions options)
      : options_(std::move(options)),
        cache_(static_cast<size_t>(options_.info.blocks) * options_.info.block_size, kGarbage) {}

  const RunnerInfo& info() const override { return options_.info; }

  absl::Status Start(const scheduler::Batch& batch, absl::Span<const RowTask> tasks) override {
    batch_ = &batch;
    tasks_ = tasks;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<RowResult>> Finish() override {
    const scheduler::Batch& batch = *batch_;
    const absl::Span<const RowTask> tasks = tasks_;
    if (options_.before_step) {
      if (absl::Status status = options_.before_step(batch); !status.ok()) return status;
    }
    if (absl::Status status = Write(batch); !status.ok()) return status;
    std::vector<RowResult> results;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const std::vector<uint32_t> history = Read(batch, batch.logits_rows[i]);
      results.push_back(sampler_.Decide(Logits(history), tasks[i]));
    }
    return results;
  }

  // The logits after `history`; also for tests that need an oracle.
  std::vector<float> Logits(const std::vector<uint32_t>& history) const {
    uint64_t h = 0x243F6A8885A308D3u;
    bool poisoned = false;
    for (uint32_t token : history) {
      h = (h ^ token) * 0x9E3779B97F4A7C15u;
      h ^= h >> 31;
      poisoned = poisoned || token == options_.poison;
    }
    std::vector<float> logits(options_.info.vocab_size);
    for (float& x : logits) {
      h = h * 6364136223846793005u + 1442695040888963407u;
      x = poisoned ? std::numeric_limits<float>::quiet_NaN()
                   : static_cast<float>(h >> 40) * 0x1p-24f * 8.0f - 4.0f;
    }
    if (options_.edit && !poisoned) options_.edit(history, logits);
    return logits;
  }

 private:
  static constexpr uint32_t kGarbage = 0xFFFFFF;

  absl::Status Write(const scheduler::Batch& b) {
    std::set<int32_t> written;
    const int32_t size = static_cast<int32_t>(options_.info.block_size);
    for (size_t i = 0; i < b.token_ids.size(); ++i) {
      const int32_t position = b.positions[i];
      const int32_t block = b.block_tables[b.token_sequence[i] * b.max_blocks + position / size];
      if (b.slots[i] != block * size + position % size || !written.insert(b.slots[i]).second) {
        return absl::InternalError(absl::StrCat("row ", i, " has a wrong or doubled slot"));
      }
      cache_.at(b.slots[i]) = static_cast<uint32_t>(b.token_ids[i]);
    }
    return absl::OkStatus();
  }

  std::vector<uint32_t> Read(const scheduler::Batch& b, int32_t row) const {
    std::vector<uint32_t> history;
    const int32_t* table = &b.block_tables[b.token_sequence[row] * b.max_blocks];
    const int32_t size = static_cast<int32_t>(options_.info.block_size);
    for (int32_t p = 0; p <= b.positions[row]; ++p) {
      history.push_back(cache_.at(table[p / size] * size + p % size));
    }
    return history;
  }

  const FakeRunnerOptions options_;
  std::vector<uint32_t> cache_;
  Sampler sampler_;
  const scheduler::Batch* batch_ = nullptr;  // of the step that has begun
  absl::Span<const RowTask> tasks_;
};

}  // namespace normserve::engine
