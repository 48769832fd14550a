// SPDX-License-Identifier: Apache-2.0
// One model's engine: an inbox, the one engine thread, and the step loop that it runs. No torch, no
// grpc: the model is behind Runner, the callers behind Outbox.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "text/tokenizer.h"

namespace normserve::engine {

struct EngineOptions {
  uint32_t max_step_tokens = 512;         // token budget of one step (prefill chunks and decode rows)
  uint32_t max_mixed_step_tokens = 0;     // the same where a sequence decodes; 0: max_step_tokens
  uint32_t max_running = 64;              // sequences in flight in one step
  uint32_t max_waiting = 1024;            // requests queued beyond which Submit is RESOURCE_EXHAUSTED
  uint64_t max_waiting_tokens = 1 << 20;  // prompt tokens queued, likewise
  bool prefix_cache = true;
  uint32_t draft_tokens = 0;              // guesses per request and step (prompt lookup); 0: none
};

// Why a request ended; each request received ends in exactly one.
enum class Terminal {
  kStop,       // EOS, stop token, stop string
  kLength,     // max_new_tokens, context limit
  kScored,     // a scoring request
  kCancelled,
  kDeadline,
  kRejected,   // RESOURCE_EXHAUSTED: at the door, or a device without memory for its step
  kInvalid,    // refused before the engine, or at the door (never fits)
  kInternal,   // NaN/Inf, runner failure
  kShutdown,   // UNAVAILABLE: draining
};
inline constexpr int kTerminalCount = 9;

// Receives the engine's measurements. Called on the engine thread (RequestReceived and RequestEnded
// also from Submit's caller); implementations are thread-safe and do not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  struct Step {
    double seconds = 0;
    uint32_t prefill_tokens = 0;
    uint32_t decode_tokens = 0;
    uint32_t sequences = 0;
    Recorded recorded = Recorded::kNone;
  };
  struct Gauges {
    uint32_t running = 0;
    uint32_t waiting = 0;
    uint32_t blocks_used = 0;    // owned by live sequences
    uint32_t blocks_cached = 0;  // free, but reusable by prefix
    uint32_t blocks_total = 0;
  };
  struct RequestTimes {  // seconds; negative = never got there
    double queue = -1, prefill = -1, decode = -1, time_to_first_token = -1, end_to_end = -1;
  };
  virtual void RequestReceived() = 0;
  virtual void RequestEnded(Terminal terminal, const RequestTimes& times, const Usage& usage) = 0;
  virtual void PromptTokens(uint32_t computed, uint32_t cached) = 0;  // as prefill proceeds
  virtual void GeneratedTokens(uint32_t count) = 0;
  virtual void FirstToken(double seconds_since_submit) = 0;
  virtual void InterToken(double seconds) = 0;
  virtual void Preempted() = 0;
  virtual void PrefixQueried(uint32_t tokens, uint32_t hit_tokens) = 0;
  virtual void NonFiniteRow() = 0;
  // Guesses that a step computed, and how many of them were right.
  virtual void Drafted(uint32_t guesses, uint32_t accepted) = 0;
  // After every step; one with no sequences ran nothing and only brings the gauges up to date.
  virtual void StepDone(const Step& step, const Gauges& gauges) = 0;
};

// Submit and Cancel: any thread. Owns the engine thread; everything else runs on it.
class Engine {
 public:
  // `tokenizer` may be null (then Request.output.text and stop strings are not allowed); tokenizer and
  // observer outlive the engine, as does `clock` (null: the system's). Starts the thread.
  Engine(std::string name, EngineOptions options, std::unique_ptr<Runner> runner,
         const text::Tokenizer* tokenizer, EngineObserver* observer,
         const base::Clock* clock = nullptr);
  // Ends what is left with UNAVAILABLE and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RunnerInfo& runner_info() const;

  // Answers at once: Ok (deltas go to `outbox`, ending with a finished one), RESOURCE_EXHAUSTED (queue
  // full), INVALID_ARGUMENT (can never fit context or KV pool; names the limit), UNAVAILABLE (draining).
  // On a failure nothing is ever pushed to `outbox`. `handle` is for Cancel.
  using Handle = uint64_t;
  absl::StatusOr<Handle> Submit(Request request, std::shared_ptr<Outbox> outbox);

  // Within one step the request ends with CANCELLED and its blocks are free. Unknown or ended: no-op.
  void Cancel(Handle handle);

  // Refuses new requests from now on; returns when all in flight have ended or at `deadline`, when the
  // rest are ended with UNAVAILABLE.
  void Drain(absl::Time deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normserve::engine
