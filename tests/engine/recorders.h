// SPDX-License-Identifier: Apache-2.0
// What a test sees of an engine: the deltas of one request, the measurements of all, and a gate
// that holds the engine thread between steps.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace normserve::engine {

// Everything a request said, joined. Any thread.
struct Transcript {
  std::string text;
  std::vector<TokenOutput> tokens;
  std::vector<std::string> texts;  // per delta
  std::vector<size_t> tokens_per_delta;
  bool finished = false;
  absl::Status status;
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_match;
  Usage usage;
  int after_end = 0;  // deltas after the finished one; must stay 0

  std::vector<uint32_t> ids() const {
    std::vector<uint32_t> out;
    for (const TokenOutput& t : tokens) out.push_back(t.id);
    return out;
  }
  std::vector<float> logprobs() const {
    std::vector<float> out;
    for (const TokenOutput& t : tokens) out.push_back(t.logprob);
    return out;
  }
};

class RecordingOutbox final : public Outbox {
 public:
  void Push(Delta delta) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (seen_.finished) ++seen_.after_end;
    seen_.text += delta.text;
    seen_.texts.push_back(delta.text);
    seen_.tokens_per_delta.push_back(delta.tokens.size());
    seen_.tokens.insert(seen_.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    seen_.finished = delta.finished;
    seen_.status = delta.status;
    seen_.finish_reason = delta.finish_reason;
    seen_.stop_match = delta.stop_match;
    seen_.usage = delta.usage;
    changed_.notify_all();
  }

  // Blocks until the request has ended.
  Transcript Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return seen_.finished; });
    return seen_;
  }
  void AwaitTokens(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return seen_.tokens.size() >= count || seen_.finished; });
  }
  Transcript Now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Transcript seen_;
};

// Any thread.
class RecordingObserver final : public EngineObserver {
 public:
  struct Counts {
    uint64_t received = 0;
    std::array<uint64_t, kTerminalCount> ended{};
    uint64_t prompt_computed = 0, prompt_cached = 0, generated = 0, first_tokens = 0;
    uint64_t inter_tokens = 0, preempted = 0, queried = 0, hit = 0, non_finite = 0, steps = 0;
    uint64_t drafted = 0, accepted = 0;
    std::array<uint64_t, kRecordedCount> recorded{};
    Gauges gauges;
    std::vector<RequestTimes> times;

    uint64_t ended_total() const {
      uint64_t sum = 0;
      for (uint64_t n : ended) sum += n;
      return sum;
    }
    uint64_t of(Terminal terminal) const { return ended[static_cast<int>(terminal)]; }
  };

  void RequestReceived() override {
    Update([](Counts& c) { ++c.received; });
  }
  void RequestEnded(Terminal terminal, const RequestTimes& times, const Usage&) override {
    Update([&](Counts& c) {
      ++c.ended[static_cast<int>(terminal)];
      c.times.push_back(times);
    });
  }
  void PromptTokens(uint32_t computed, uint32_t cached) override {
    Update([&](Counts& c) {
      c.prompt_computed += computed;
      c.prompt_cached += cached;
    });
  }
  void GeneratedTokens(uint32_t count) override {
    Update([&](Counts& c) { c.generated += count; });
  }
  void FirstToken(double) override {
    Update([](Counts& c) { ++c.first_tokens; });
  }
  void InterToken(double) override {
    Update([](Counts& c) { ++c.inter_tokens; });
  }
  void Preempted() override {
    Update([](Counts& c) { ++c.preempted; });
  }
  void PrefixQueried(uint32_t tokens, uint32_t hit) override {
    Update([&](Counts& c) {
      c.queried += tokens;
      c.hit += hit;
    });
  }
  void Drafted(uint32_t guesses, uint32_t accepted) override {
    Update([&](Counts& c) {
      c.drafted += guesses;
      c.accepted += accepted;
    });
  }
  void NonFiniteRow() override {
    Update([](Counts& c) { ++c.non_finite; });
  }
  void StepDone(const Step& step, const Gauges& gauges) override {
    Update([&](Counts& c) {
      c.steps += step.sequences > 0;
      if (step.sequences > 0) ++c.recorded[static_cast<int>(step.recorded)];
      c.gauges = gauges;
    });
  }

  Counts Now() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

 private:
  template <typename F>
  void Update(F f) {
    std::lock_guard<std::mutex> lock(mutex_);
    f(counts_);
  }
  mutable std::mutex mutex_;
  Counts counts_;
};

// Holds whoever passes until it is let through; for FakeRunnerOptions::before_step.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || permits_ > 0; });
    if (!open_) --permits_;
  }
  // Returns once the engine stands before its `count`-th step (from 1).
  void AwaitArrival(uint64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  void Let(uint64_t steps) {
    std::lock_guard<std::mutex> lock(mutex_);
    permits_ += steps;
    changed_.notify_all();
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t arrived_ = 0;
  uint64_t permits_ = 0;
  bool open_ = false;
};

}  // namespace normserve::engine
