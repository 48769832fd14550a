// SPDX-License-Identifier: Apache-2.0
// The engine by itself, without gRPC: what a server's overhead is measured against (overhead.py).
//   engine_bench MODEL_DIR [--dtype bfloat16] [--threads 2]
// Each line on standard input, "STREAMS PROMPT_TOKENS OUTPUT_TOKENS", submits so many requests at once and
// prints their output tokens per second of wall time.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/recorders.h"

namespace normserve::engine {
namespace {

double TokensPerSecond(Engine& engine, std::mt19937& random, int streams, int prompt_tokens,
                       uint32_t output_tokens) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<RecordingOutbox>> outboxes;
  for (int s = 0; s < streams; ++s) {
    Request request;
    for (int i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<uint32_t>(random()) % engine.runner_info().vocab_size);
    }
    request.stop.max_new_tokens = output_tokens;
    outboxes.push_back(std::make_shared<RecordingOutbox>());
    const auto handle = engine.Submit(std::move(request), outboxes.back());
    if (!handle.ok()) throw std::runtime_error(handle.status().ToString());
  }
  for (const auto& outbox : outboxes) outbox->Wait();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return streams * static_cast<double>(output_tokens) / seconds.count();
}

int Main(int argc, char** argv) {
  CLI::App app("tokens per second of the engine alone");
  std::string directory, dtype = "bfloat16";
  ModelRunnerOptions options;
  options.threads = 2;
  options.blocks = 1024;
  app.add_option("model", directory, "checkpoint folder")->required();
  app.add_option("--dtype", dtype, "float32 or bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--threads", options.threads, "compute threads");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  model::LoadOptions load;
  load.dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
  auto model = model::CausalLm::Load(directory, load);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  auto runner = std::make_unique<ModelRunner>(*std::move(model), options);
  if (const absl::Status warm = normserve::engine::WarmUp(*runner); !warm.ok()) {
    std::fprintf(stderr, "%s\n", warm.ToString().c_str());
    return 1;
  }
  RecordingObserver observer;
  Engine engine("bench", {}, std::move(runner), nullptr, &observer);
  std::mt19937 random(1);
  int streams = 0, prompt_tokens = 0;
  uint32_t output_tokens = 0;
  while (std::cin >> streams >> prompt_tokens >> output_tokens) {
    std::printf("%.3f\n", TokensPerSecond(engine, random, streams, prompt_tokens, output_tokens));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace normserve::engine

int main(int argc, char** argv) { return normserve::engine::Main(argc, argv); }
