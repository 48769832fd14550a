// SPDX-License-Identifier: Apache-2.0
// DeviceRunner on the emulated CUDA device: recorded steps against steps that run kernel by kernel, rounded-up
// shapes against exact ones, sampling on the device against the host's sampler. A recording of the emulator is
// what a CUDA graph is: launches with the arguments that they had, so that a wrong address, a stale size or a
// padded row that touches a live block shows here.
#include "engine/device_runner.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "engine/harness.h"
#include "engine/sampler.h"
#include "kernels/kernel_plugin.h"

namespace normserve::engine {
namespace {

kernels::Accelerator* Device() {
  static const auto* device = new absl::StatusOr<std::unique_ptr<kernels::Accelerator>>(
      kernels::OpenKernelPlugin("normserve_cuda_emulated.so", 0));
  EXPECT_TRUE(device->ok()) << device->status();
  return device->ok() ? device->value().get() : nullptr;
}

std::unique_ptr<model::CausalLm> Load(const std::string& name, at::ScalarType dtype = at::kFloat,
                                      bool batch_invariant = false) {
  model::LoadOptions options;
  options.batch_invariant = batch_invariant;
  options.dtype = options.activations = dtype;
  auto model = model::CausalLm::Load("golden/" + name, options);
  if (!model.ok()) ADD_FAILURE() << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

DeviceRunnerOptions Blocks(uint32_t blocks, bool record = true) {
  DeviceRunnerOptions options;
  options.block_size = 16;
  options.blocks = blocks;
  options.record = record;
  return options;
}

// Requests of every kind: greedy, sampled with each truncation and penalty, scored, with alternatives.
std::vector<Request> Mixed(uint32_t vocab, int count) {
  std::mt19937 random(5);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<uint32_t> prompt(1 + random() % 9);
    for (uint32_t& id : prompt) id = random() % vocab;
    if (i % 6 == 5 && prompt.size() > 1) {
      requests.push_back(ScoreFrom(prompt, 1));
      continue;
    }
    Request request = Seeded(prompt, 2 + random() % 7, i, i % 3 ? 0.8f : 0.0f);
    request.output.logprobs = true;
    request.output.top_logprobs = i % 4;
    SamplingParams& sampling = request.sampling;
    if (i % 4 == 1) sampling.top_k = 5;
    if (i % 4 == 2) sampling.top_p = 0.7f;
    if (i % 5 == 1) sampling.repetition_penalty = 1.3f;
    if (i % 5 == 2) sampling.frequency_penalty = 0.5f;
    if (i % 7 == 3) sampling.logit_bias = {{prompt[0], -3.0f}};
    requests.push_back(request);
  }
  return requests;
}

struct Outcome {
  std::vector<Transcript> transcripts;
  RecordingObserver::Counts counts;
};

Outcome Serve(std::unique_ptr<Runner> runner, const std::vector<Request>& requests, EngineOptions options = {}) {
  const absl::Status warm = WarmUp(*runner);
  EXPECT_TRUE(warm.ok()) << warm;
  RecordingObserver observer;
  Outcome outcome;
  {
    Engine engine("device", options, std::move(runner), nullptr, &observer);
    std::vector<std::shared_ptr<RecordingOutbox>> outboxes;
    for (const Request& request : requests) {
      outboxes.push_back(std::make_shared<RecordingOutbox>());
      const auto handle = engine.Submit(request, outboxes.back());
      EXPECT_TRUE(handle.ok()) << handle.status();
    }
    for (auto& outbox : outboxes) outcome.transcripts.push_back(outbox->Wait());
  }
  outcome.counts = observer.Now();
  return outcome;
}

void ExpectSame(const std::vector<Transcript>& got, const std::vector<Transcript>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(got[i].status.ok()) << got[i].status;
    EXPECT_EQ(got[i].ids(), want[i].ids());
    EXPECT_EQ(got[i].logprobs(), want[i].logprobs());
    for (size_t k = 0; k < want[i].tokens.size() && k < got[i].tokens.size(); ++k) {
      EXPECT_EQ(got[i].tokens[k].top_ids, want[i].tokens[k].top_ids);
      EXPECT_EQ(got[i].tokens[k].top_logprobs, want[i].tokens[k].top_logprobs);
    }
  }
}

class RecordedStepsTest : public ::testing::TestWithParam<std::pair<const char*, at::ScalarType>> {};

TEST_P(RecordedStepsTest, GiveTheBitsOfStepsRunKernelByKernel) {
  const auto [name, dtype] = GetParam();
  const std::vector<Request> requests = Mixed(250, 7);
  EngineOptions alone;
  alone.max_running = 1;
  alone.prefix_cache = false;
  const Outcome want =
      Serve(std::make_unique<DeviceRunner>(Load(name, dtype), Device(), Blocks(64, false)), requests, alone);
  EXPECT_EQ(want.counts.recorded[static_cast<int>(Recorded::kReplayed)], 0u);
  // Few blocks: sequences are put back and come again while others' recorded steps run.
  for (const uint32_t blocks : {4u, 64u}) {
    SCOPED_TRACE(blocks);
    const Outcome got = Serve(std::make_unique<DeviceRunner>(Load(name, dtype), Device(), Blocks(blocks)), requests);
    ExpectSame(got.transcripts, want.transcripts);
    EXPECT_GT(got.counts.recorded[static_cast<int>(Recorded::kReplayed)], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, RecordedStepsTest,
                         ::testing::Values(std::make_pair("bhyt_rms_gqa", at::kFloat),
                                           std::make_pair("bhyt_rms_gqa", at::kBFloat16),
                                           std::make_pair("bhyt_kappa_grow", at::kFloat),
                                           std::make_pair("sg_simplegpt_rms_gqa_llama3", at::kFloat)));

// Every step, prefills too, is padded to a multiple of 64 rows; the emulated products sum in one order anyway.
TEST(DeviceRunnerTest, StepsPaddedForBatchInvarianceGiveTheSameBits) {
  const std::vector<Request> requests = Mixed(250, 3);
  const char* name = "bhyt_rms_gqa";
  const Outcome want = Serve(std::make_unique<DeviceRunner>(Load(name), Device(), Blocks(64, false)), requests);
  DeviceRunnerOptions padded = Blocks(64);
  padded.row_multiple = model::kBatchInvariantRows;
  padded.max_step_tokens = 100;
  EngineOptions engine;
  engine.max_step_tokens = 100;
  const Outcome got =
      Serve(std::make_unique<DeviceRunner>(Load(name, at::kFloat, true), Device(), padded), requests, engine);
  ExpectSame(got.transcripts, want.transcripts);
  EXPECT_GT(got.counts.recorded[static_cast<int>(Recorded::kReplayed)], 0u);
}

// FlashInfer's kernel is a loop here, which sums in another order than ours.
TEST(DeviceRunnerTest, AttentionByTilesIsTheSameToRoundingAndToTheBitInAnyBatch) {
  const std::vector<Request> requests = Mixed(250, 7);
  const char* name = "bhyt_rms_gqa";
  const auto serve = [&](bool tiles, bool record, uint32_t blocks, uint32_t running) {
    DeviceRunnerOptions options = Blocks(blocks, record);
    options.tile_attention = tiles;
    EngineOptions engine;
    engine.max_running = running;
    return Serve(std::make_unique<DeviceRunner>(Load(name), Device(), options), requests, engine);
  };
  const Outcome own = serve(false, false, 64, 1), alone = serve(true, false, 64, 1);
  ASSERT_EQ(alone.transcripts.size(), own.transcripts.size());
  for (size_t i = 0; i < own.transcripts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(alone.transcripts[i].ids(), own.transcripts[i].ids());
    const auto got = alone.transcripts[i].logprobs(), want = own.transcripts[i].logprobs();
    ASSERT_EQ(got.size(), want.size());
    for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-4);
  }
  for (const uint32_t blocks : {4u, 64u}) {
    const Outcome together = serve(true, true, blocks, 64);
    ExpectSame(together.transcripts, alone.transcripts);
    EXPECT_GT(together.counts.recorded[static_cast<int>(Recorded::kReplayed)], 0u);
  }
}

// One sequence of `tokens` tokens that decodes its last one.
struct DecodeStep {
  explicit DecodeStep(int32_t position) {
    batch.token_ids = {7};
    batch.positions = {position};
    batch.slots = {position};
    batch.token_sequence = {0};
    batch.block_tables = {0, 1};
    batch.sequences = 1;
    batch.max_blocks = 2;
    batch.logits_rows = {0};
    batch.logits_sequence = {1};
    task.sampling = &sampling;
    task.logprob = true;
  }
  absl::StatusOr<std::vector<RowResult>> Run(DeviceRunner& runner) { return runner.Run(batch, {&task, 1}); }

  scheduler::Batch batch;
  SamplingParams sampling;
  RowTask task;
};

TEST(DeviceRunnerTest, AShapeRunsOnceIsRecordedAndThenReplayed) {
  DeviceRunner runner(Load("bhyt_rms_gqa"), Device(), Blocks(4));
  for (const Recorded want : {Recorded::kNone, Recorded::kNow, Recorded::kReplayed, Recorded::kReplayed}) {
    ASSERT_TRUE(DecodeStep(3).Run(runner).ok());
    EXPECT_EQ(runner.recorded(), want);
  }
}

// The block of step arrays moves when a step brings more than it holds: what was recorded reads the old one.
TEST(DeviceRunnerTest, RecordingsEndWhenTheStepsArraysMove) {
  DeviceRunner runner(Load("bhyt_rms_gqa"), Device(), Blocks(4));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(DecodeStep(3).Run(runner).ok());

  DecodeStep wide(0);
  wide.batch.max_blocks = 1 << 19;
  wide.batch.block_tables.assign(static_cast<size_t>(wide.batch.max_blocks), 0);
  wide.batch.logits_rows = {0};
  ASSERT_TRUE(wide.Run(runner).ok());
  const auto again = DecodeStep(3).Run(runner);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(runner.recorded(), Recorded::kNone);
}

TEST(DeviceRunnerTest, MoreAlternativesThanTheKernelGivesAreTheHosts) {
  DeviceRunner runner(Load("bhyt_rms_gqa"), Device(), Blocks(4));
  for (int i = 0; i < 2; ++i) {
    DecodeStep few(3), many(3);
    few.task.top_logprobs = kernels::kMaxSampledTop;
    many.task.top_logprobs = kernels::kMaxSampledTop + 1;
    const auto on_device = few.Run(runner);
    const auto on_host = many.Run(runner);
    ASSERT_TRUE(on_device.ok() && on_host.ok()) << on_device.status() << on_host.status();
    const TokenOutput& device = (*on_device)[0].token;
    const TokenOutput& host = (*on_host)[0].token;
    EXPECT_EQ(device.id, host.id);
    ASSERT_EQ(host.top_ids.size(), device.top_ids.size() + 1);
    for (size_t k = 0; k < device.top_ids.size(); ++k) {
      EXPECT_EQ(device.top_ids[k], host.top_ids[k]);
      EXPECT_NEAR(device.top_logprobs[k], host.top_logprobs[k], 1e-5);
    }
  }
}

TEST(DeviceRunnerTest, ALibTorchExceptionIsAStatus) {
  DeviceRunner runner(Load("bhyt_rms_gqa"), Device(), Blocks(4));
  DecodeStep broken(3);
  broken.batch.token_ids = {1 << 20};  // no such id
  EXPECT_EQ(broken.Run(runner).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(WarmUp(runner).ok());
}

}  // namespace
}  // namespace normserve::engine
