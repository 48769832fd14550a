// SPDX-License-Identifier: Apache-2.0
// An engine on the fake model, with everything recorded; and short ways to write requests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/fake_runner.h"
#include "engine/recorders.h"
#include "text/fake_tokenizer.h"

namespace normserve::engine {

// Order of members is order of life: the engine ends first.
class Harness {
 public:
  explicit Harness(FakeRunnerOptions runner = {}, EngineOptions options = {},
                   const base::Clock* clock = nullptr, std::vector<std::string> extra_pieces = {})
      : tokenizer_(std::move(extra_pieces)) {
    engine_ =
        std::make_unique<Engine>("test", options, std::make_unique<FakeRunner>(std::move(runner)),
                                 &tokenizer_, &observer_, clock);
  }

  struct Call {
    absl::StatusOr<Engine::Handle> handle;
    std::shared_ptr<RecordingOutbox> outbox;
  };
  Call Submit(Request request) {
    Call call{absl::UnknownError(""), std::make_shared<RecordingOutbox>()};
    call.handle = engine_->Submit(std::move(request), call.outbox);
    return call;
  }
  Transcript Run(Request request) {
    Call call = Submit(std::move(request));
    if (!call.handle.ok()) {
      ADD_FAILURE() << call.handle.status();
      return {};
    }
    return call.outbox->Wait();
  }

  Engine& engine() { return *engine_; }
  void Destroy() { engine_.reset(); }
  RecordingObserver::Counts counts() const { return observer_.Now(); }

  void ExpectIdle() const {
    const auto c = counts();
    EXPECT_EQ(c.gauges.running, 0u);
    EXPECT_EQ(c.gauges.waiting, 0u);
    EXPECT_EQ(c.gauges.blocks_used, 0u);
    EXPECT_EQ(c.received, c.ended_total());
  }

 private:
  text::FakeTokenizer tokenizer_;
  RecordingObserver observer_;
  std::unique_ptr<Engine> engine_;
};

inline Request Prompt(std::vector<uint32_t> prompt, uint32_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.stop.max_new_tokens = max_new_tokens;
  return request;
}

inline Request Seeded(std::vector<uint32_t> prompt, uint32_t max_new_tokens, uint64_t seed,
                      float temperature = 0.8f) {
  Request request = Prompt(std::move(prompt), max_new_tokens);
  request.sampling.seed = seed;
  request.sampling.temperature = temperature;
  return request;
}

inline Request ScoreFrom(std::vector<uint32_t> prompt, uint32_t from) {
  Request request;
  request.prompt = std::move(prompt);
  request.score_from = from;
  return request;
}

// A model that continues a prompt of `prompt_tokens` with `ids`, by far most probably.
inline FakeRunnerOptions Scripted(size_t prompt_tokens, std::vector<uint32_t> ids,
                                  uint32_t vocab_size = 300) {
  FakeRunnerOptions options;
  options.info.vocab_size = vocab_size;
  options.edit = [prompt_tokens, ids = std::move(ids)](const std::vector<uint32_t>& history,
                                                       std::vector<float>& logits) {
    const size_t index = history.size() - prompt_tokens;
    if (index < ids.size()) logits[ids[index]] = 50.0f;
  };
  return options;
}

inline FakeRunnerOptions Gated(Gate& gate) {
  FakeRunnerOptions options;
  options.before_step = [&gate](const scheduler::Batch&) {
    gate.Pass();
    return absl::OkStatus();
  };
  return options;
}

}  // namespace normserve::engine
