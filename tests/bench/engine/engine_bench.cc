// SPDX-License-Identifier: Apache-2.0
// The engine by itself, without gRPC: what a server's overhead is measured against (overhead.py), and what
// tests/gpu/check.sh measures a GPU with.
//   engine_bench MODEL_DIR [--dtype bfloat16] [--threads 2] [--device cuda] [--json]
// Each line on standard input, "STREAMS PROMPT_TOKENS OUTPUT_TOKENS", submits so many requests at once and
// prints their output tokens per second of wall time. With --json, one object per answer, and one before the
// first, when the model is there.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "engine/device_runner.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/recorders.h"
#include "gpu/open_device.h"

namespace normserve::engine {
namespace {

struct Settings {
  std::string directory, dtype = "bfloat16", device = "cpu", quantize = "none", attention = "own";
  int threads = 2;
  uint32_t blocks = 1024;
  bool json = false, batch_invariant = false, dependent_launch = false;
  EngineOptions engine;
};

struct Load {
  int streams = 0, prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

double TokensPerSecond(Engine& engine, std::mt19937& random, const Load& load) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<RecordingOutbox>> outboxes;
  for (int s = 0; s < load.streams; ++s) {
    Request request;
    for (int i = 0; i < load.prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<uint32_t>(random()) % engine.runner_info().vocab_size);
    }
    request.stop.max_new_tokens = load.output_tokens;
    outboxes.push_back(std::make_shared<RecordingOutbox>());
    const auto handle = engine.Submit(std::move(request), outboxes.back());
    if (!handle.ok()) throw std::runtime_error(handle.status().ToString());
  }
  for (const auto& outbox : outboxes) {
    const Transcript transcript = outbox->Wait();
    if (!transcript.status.ok()) throw std::runtime_error(transcript.status.ToString());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return load.streams * static_cast<double>(load.output_tokens) / seconds.count();
}

model::Quantization QuantizationOf(const std::string& name) {
  if (name == "int8") return model::Quantization::kInt8;
  if (name == "fp8") return model::Quantization::kFloat8;
  return model::Quantization::kNone;
}

model::LoadOptions LoadOptionsOf(const Settings& settings, const kernels::Accelerator* device) {
  model::LoadOptions load;
  load.dtype = settings.dtype == "float32" ? at::kFloat : at::kBFloat16;
  load.quantize = QuantizationOf(settings.quantize);
  if (settings.quantize != "none") load.quantize_head = model::Quantization::kInt8;
  if (device != nullptr) {
    load.device = device->device();
    load.activations = load.dtype;
    load.batch_invariant = settings.batch_invariant;
  }
  return load;
}

std::unique_ptr<Runner> MakeRunner(const Settings& settings, std::unique_ptr<model::CausalLm> model,
                                   kernels::Accelerator* device) {
  if (device == nullptr) {
    ModelRunnerOptions options;
    options.threads = settings.threads;
    options.blocks = settings.blocks;
    return std::make_unique<ModelRunner>(std::move(model), options);
  }
  DeviceRunnerOptions options;
  options.blocks = settings.blocks;
  options.max_step_tokens = settings.engine.max_step_tokens;
  options.tile_attention = settings.attention == "flashinfer";
  if (settings.batch_invariant) options.row_multiple = model::kBatchInvariantRows;
  return std::make_unique<DeviceRunner>(std::move(model), device, options);
}

void Print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void Serve(Engine& engine, const RecordingObserver& observer, bool json) {
  std::mt19937 random(1);
  Load load;
  const auto replayed = [&] { return observer.Now().recorded[static_cast<int>(Recorded::kReplayed)]; };
  while (std::cin >> load.streams >> load.prompt_tokens >> load.output_tokens) {
    const uint64_t before = replayed();
    const double rate = TokensPerSecond(engine, random, load);
    if (json) {
      Print({{"tokens_per_second", rate}, {"replayed_steps", replayed() - before}});
    } else {
      std::printf("%.3f\n", rate);
      std::fflush(stdout);
    }
  }
}

int Main(int argc, char** argv) {
  CLI::App app("tokens per second of the engine alone");
  Settings settings;
  app.add_option("model", settings.directory, "checkpoint folder")->required();
  app.add_option("--dtype", settings.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--threads", settings.threads, "compute threads, of the CPU");
  app.add_option("--device", settings.device, "cpu, cuda or cuda-emulated")
      ->check(CLI::IsMember({"cpu", "cuda", "cuda-emulated"}));
  app.add_option("--quantize", settings.quantize, "none, int8 or fp8 (embedding and head: int8)")
      ->check(CLI::IsMember({"none", "int8", "fp8"}));
  app.add_option("--attention", settings.attention, "as the server's: own or flashinfer")
      ->check(CLI::IsMember({"own", "flashinfer"}));
  app.add_flag("--dependent-launch", settings.dependent_launch, "as the server's");
  app.add_flag("--batch-invariant", settings.batch_invariant, "as the server's");
  app.add_option("--blocks", settings.blocks, "blocks of the KV cache, of 32 tokens each");
  app.add_option("--max-running", settings.engine.max_running, "most requests in one step");
  app.add_flag("--json", settings.json, "answers as JSON objects");
  CLI11_PARSE(app, argc, argv);
  std::unique_ptr<kernels::Accelerator> device;
  if (settings.device == "cpu") {
    at::set_num_threads(1);
  } else {
    device = OpenDeviceOrExit(settings.device);
    const std::string fault = settings.dependent_launch ? device->UseDependentLaunch() : "";
    if (!fault.empty()) {
      std::fprintf(stderr, "--dependent-launch: %s\n", fault.c_str());
      return 2;
    }
  }
  if (settings.attention != "own" && device == nullptr) {
    std::fprintf(stderr, "--attention %s: not on the CPU\n", settings.attention.c_str());
    return 2;
  }
  auto model = model::CausalLm::Load(settings.directory, LoadOptionsOf(settings, device.get()));
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  const model::ModelDescription description = (*model)->description();
  auto runner = MakeRunner(settings, *std::move(model), device.get());
  if (const absl::Status warm = normserve::engine::WarmUp(*runner); !warm.ok()) {
    std::fprintf(stderr, "%s\n", warm.ToString().c_str());
    return 1;
  }
  RecordingObserver observer;
  Engine engine("bench", settings.engine, std::move(runner), nullptr, &observer);
  if (settings.json) {
    Print({{"weight_bytes", description.weight_bytes},
           {"parameters", description.parameter_count},
           {"device", device != nullptr ? device->description() : "cpu"}});
  }
  Serve(engine, observer, settings.json);
  return 0;
}

}  // namespace
}  // namespace normserve::engine

int main(int argc, char** argv) {
  try {
    return normserve::engine::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
