// SPDX-License-Identifier: Apache-2.0
// The engine on real models: what the fake runner cannot show, the numeric path itself. Golden
// values of the layers are tests/model's business.
#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/harness.h"

namespace normserve::engine {
namespace {

std::unique_ptr<model::CausalLm> Load(const std::string& name, at::ScalarType dtype = at::kFloat) {
  model::LoadOptions options;
  options.dtype = dtype;
  auto model = model::CausalLm::Load("golden/" + name, options);
  if (!model.ok()) ADD_FAILURE() << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// An engine over a golden checkpoint.
class Served {
 public:
  Served(const std::string& name, EngineOptions options, uint32_t blocks, int threads,
         at::ScalarType dtype = at::kFloat) {
    ModelRunnerOptions runner_options;
    runner_options.block_size = 16;
    runner_options.blocks = blocks;
    runner_options.threads = threads;
    auto runner = std::make_unique<ModelRunner>(Load(name, dtype), runner_options);
    const absl::Status warm = WarmUp(*runner);
    EXPECT_TRUE(warm.ok()) << warm;
    engine_ = std::make_unique<Engine>("real", options, std::move(runner), nullptr, &observer_);
  }

  std::vector<Transcript> Run(const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<RecordingOutbox>> outboxes;
    for (const Request& request : requests) {
      outboxes.push_back(std::make_shared<RecordingOutbox>());
      const auto handle = engine_->Submit(request, outboxes.back());
      EXPECT_TRUE(handle.ok()) << handle.status();
    }
    std::vector<Transcript> out;
    for (auto& outbox : outboxes) out.push_back(outbox->Wait());
    return out;
  }
  RecordingObserver::Counts counts() const { return observer_.Now(); }

 private:
  RecordingObserver observer_;
  std::unique_ptr<Engine> engine_;
};

TEST(ModelRunnerTest, GreedyIdsAreTheRecordedOnes) {
  const auto golden = nlohmann::json::parse(std::ifstream("golden/bhyt_rms_gqa/golden.json"));
  const auto& generation = golden["generation"];
  Request request = Prompt(generation["prompt_ids"].get<std::vector<uint32_t>>(), 32);
  request.output.logprobs = true;
  Served served("bhyt_rms_gqa", {}, 64, 2);
  const Transcript t = served.Run({request})[0];
  EXPECT_EQ(t.ids(), generation["generated_ids"].get<std::vector<uint32_t>>());
  for (size_t i = 0; i < t.tokens.size(); ++i) {
    EXPECT_NEAR(t.tokens[i].logprob, generation["logprobs"][i].get<double>(), 2e-4);
  }
}

std::vector<Request> Mixed(uint32_t vocab, int count) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  const uint32_t shared = random() % vocab;
  for (int i = 0; i < count; ++i) {
    std::vector<uint32_t> prompt(1 + random() % 20, shared);
    for (size_t k = random() % prompt.size(); k < prompt.size(); ++k) prompt[k] = random() % vocab;
    if (i % 5 == 4 && prompt.size() > 1) {
      requests.push_back(ScoreFrom(prompt, 1 + random() % (prompt.size() - 1)));
      continue;
    }
    requests.push_back(Seeded(prompt, 1 + random() % 60, i, i % 2 ? 0.9f : 0.0f));
    requests.back().output.logprobs = true;
    requests.back().output.top_logprobs = i % 3;
  }
  return requests;
}

class OneNumericPathTest : public ::testing::TestWithParam<std::pair<const char*, at::ScalarType>> {
};

// Batch size, chunk size, preemption, prefix hits and thread count change no bit.
TEST_P(OneNumericPathTest, OutputsEqualTheRunAloneBitForBit) {
  const auto [name, dtype] = GetParam();
  const std::vector<Request> requests = Mixed(250, 24);
  EngineOptions alone;
  alone.prefix_cache = false;
  alone.max_running = 1;
  const std::vector<Transcript> want = Served(name, alone, 64, 1, dtype).Run(requests);
  uint64_t preempted = 0, hits = 0;
  for (uint32_t step_tokens : {1u, 7u, 33u, 512u}) {
    for (uint32_t blocks : {5u, 64u}) {
      SCOPED_TRACE(testing::Message() << name << " " << step_tokens << " " << blocks);
      EngineOptions options;
      options.max_step_tokens = step_tokens;
      Served served(name, options, blocks, 2, dtype);
      const std::vector<Transcript> got = served.Run(requests);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(got[i].status.ok()) << got[i].status;
        EXPECT_EQ(got[i].ids(), want[i].ids()) << i;
        EXPECT_EQ(got[i].logprobs(), want[i].logprobs()) << i;
        for (size_t k = 0; k < want[i].tokens.size() && k < got[i].tokens.size(); ++k) {
          EXPECT_EQ(got[i].tokens[k].top_logprobs, want[i].tokens[k].top_logprobs);
        }
      }
      preempted += served.counts().preempted;
      hits += served.counts().hit;
    }
  }
  EXPECT_GT(preempted, 0u);
  EXPECT_GT(hits, 0u);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, OneNumericPathTest,
                         ::testing::Values(std::make_pair("bhyt_rms_gqa", at::kFloat),
                                           std::make_pair("bhyt_learnable_last0", at::kFloat),
                                           std::make_pair("bhyt_learnable_last0", at::kBFloat16)));

// More rows than one slice of logits holds.
TEST(ModelRunnerTest, ScoresALongPromptInOneStep) {
  std::vector<uint32_t> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = (i * 37) % 250;
  EngineOptions small;
  small.max_step_tokens = 9;
  const Transcript whole = Served("bhyt_rms_gqa", {}, 64, 2).Run({ScoreFrom(prompt, 1)})[0];
  const Transcript chunks = Served("bhyt_rms_gqa", small, 64, 1).Run({ScoreFrom(prompt, 1)})[0];
  EXPECT_EQ(whole.tokens.size(), 99u);
  EXPECT_EQ(whole.logprobs(), chunks.logprobs());
}

TEST(ModelRunnerTest, ALibTorchExceptionIsAStatus) {
  ModelRunnerOptions options;
  options.block_size = 16;
  options.blocks = 2;
  ModelRunner runner(Load("bhyt_rms_gqa"), options);
  scheduler::Batch batch;
  batch.token_ids = {1, 2};
  batch.positions = {0};  // not as long as token_ids
  batch.slots = {0, 1};
  batch.token_sequence = {0, 0};
  batch.block_tables = {0};
  batch.sequences = 1;
  batch.max_blocks = 1;
  batch.logits_rows = {1};
  batch.logits_sequence = {1};
  const SamplingParams greedy;
  RowTask task;
  task.sampling = &greedy;
  EXPECT_EQ(runner.Run(batch, {&task, 1}).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(WarmUp(runner).ok());
}

}  // namespace
}  // namespace normserve::engine
