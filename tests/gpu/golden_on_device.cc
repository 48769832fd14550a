// SPDX-License-Identifier: Apache-2.0
// The golden cases through DeviceRunner on a device: greedy ids and log-probabilities of the chosen tokens,
// with decode steps kernel by kernel and with recorded ones. One JSON object per case on standard output.
//   golden_on_device --device cuda [CASE...]        in the folder that holds golden/ and golden_own/
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/device_runner.h"
#include "engine/engine.h"
#include "engine/recorders.h"
#include "gpu/open_device.h"
#include "model/golden_case.h"

namespace normserve::engine {
namespace {

using model::GoldenCase;

// As in tests/model/golden_test.cc.
constexpr double kLogprobTolerance = 2e-4;
constexpr double kBf16Max = 0.25;
constexpr double kBf16Mean = 0.03;

struct Differences {
  double largest = 0.0, sum = 0.0;
  int count = 0;

  void Add(double difference) {
    // A NaN is the largest of all.
    largest = std::isnan(difference) ? INFINITY : std::max(largest, std::abs(difference));
    sum += std::abs(difference);
    ++count;
  }
  double mean() const { return count > 0 ? sum / count : 0.0; }
};

std::vector<uint32_t> Ids(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

Request Greedy(const GoldenCase& golden) {
  Request request;
  request.prompt = Ids(golden.prompt);
  request.sampling.temperature = 0.0f;
  request.stop.max_new_tokens = static_cast<uint32_t>(golden.generated.size());
  request.output.logprobs = true;
  return request;
}

Request Score(const GoldenCase& golden) {
  Request request;
  request.prompt = Ids(golden.prompt);
  request.prompt.insert(request.prompt.end(), golden.generated.begin(), golden.generated.end());
  request.score_from = static_cast<uint32_t>(golden.prompt.size());
  return request;
}

struct Answer {
  Transcript greedy, scored;
  uint64_t replayed_steps = 0;
};

Transcript Ask(Engine& engine, Request request) {
  const auto outbox = std::make_shared<RecordingOutbox>();
  const auto handle = engine.Submit(std::move(request), outbox);
  if (handle.ok()) return outbox->Wait();
  Transcript refused;
  refused.status = handle.status();
  return refused;
}

// Throws what the device throws.
Answer Run(const GoldenCase& golden, kernels::Accelerator* device, bool record) {
  model::LoadOptions load;
  load.dtype = golden.bfloat16 ? at::kBFloat16 : at::kFloat;
  load.activations = load.dtype;
  load.device = device->device();
  // config.seq_len is 48 there; what was recorded is of a first forward of 10 tokens.
  if (std::filesystem::path(golden.directory).filename() == "bhyt_seqlen") load.bhyt_seq_len = 10;
  auto loaded = model::CausalLm::Load(golden.model_directory, load);
  if (!loaded.ok()) throw std::runtime_error(loaded.status().ToString());
  DeviceRunnerOptions options;
  options.block_size = 16;
  options.blocks = 16;
  options.record = record;
  EngineOptions engine_options;
  engine_options.prefix_cache = false;
  RecordingObserver observer;
  Answer answer;
  {
    Engine engine("golden", engine_options,
                  std::make_unique<DeviceRunner>(*std::move(loaded), device, options), nullptr, &observer);
    answer.greedy = Ask(engine, Greedy(golden));
    answer.scored = Ask(engine, Score(golden));
  }
  answer.replayed_steps = observer.Now().recorded[static_cast<int>(Recorded::kReplayed)];
  return answer;
}

// Greedy tokens against the recorded ones; in bfloat16 up to the first choice between near equals. The first
// problem, or nothing.
std::string CompareGreedy(const GoldenCase& golden, const Transcript& got, Differences* differences) {
  if (!got.status.ok()) return "greedy: " + got.status.ToString();
  for (size_t i = 0; i < golden.generated.size(); ++i) {
    if (i >= got.tokens.size()) return "greedy: ended after " + std::to_string(i) + " tokens";
    if (static_cast<int32_t>(got.tokens[i].id) != golden.generated[i]) {
      if (golden.bfloat16 && golden.margins[i] < kBf16Max) return "";
      return "greedy: token " + std::to_string(i) + " is " + std::to_string(got.tokens[i].id) +
             " instead of " + std::to_string(golden.generated[i]);
    }
    differences->Add(got.tokens[i].logprob - golden.logprobs[i]);
  }
  return "";
}

std::string CompareScores(const GoldenCase& golden, const Transcript& got, Differences* differences) {
  if (!got.status.ok()) return "score: " + got.status.ToString();
  if (got.tokens.size() != golden.generated.size()) {
    return "score: " + std::to_string(got.tokens.size()) + " tokens";
  }
  for (size_t i = 0; i < golden.generated.size(); ++i) {
    differences->Add(got.tokens[i].logprob - golden.logprobs[i]);
  }
  return "";
}

bool SameBits(const Transcript& a, const Transcript& b) {
  return a.ids() == b.ids() && a.logprobs() == b.logprobs();
}

std::string Problem(const GoldenCase& golden, const Answer& plain, const Answer& recorded,
                    Differences* all) {
  for (const Answer* answer : {&plain, &recorded}) {
    const std::string of = answer == &plain ? "kernel by kernel: " : "recorded: ";
    for (const std::string& problem : {CompareGreedy(golden, answer->greedy, all),
                                       CompareScores(golden, answer->scored, all)}) {
      if (!problem.empty()) return of + problem;
    }
  }
  if (!SameBits(plain.greedy, recorded.greedy)) {
    return "recorded steps do not give the bits of those kernel by kernel";
  }
  if (recorded.replayed_steps == 0) return "no step was replayed";
  const double most = golden.bfloat16 ? kBf16Max : kLogprobTolerance;
  if (all->largest > most) return "a log-probability is too far off";
  if (golden.bfloat16 && all->mean() > kBf16Mean) return "the log-probabilities' mean is too far off";
  return "";
}

nlohmann::json Check(const std::string& directory, kernels::Accelerator* device) {
  nlohmann::json line = {{"case", std::filesystem::path(directory).filename()}};
  try {
    const GoldenCase golden = model::OpenGolden(directory);
    line["dtype"] = golden.bfloat16 ? "bfloat16" : "float32";
    Differences differences;
    const Answer plain = Run(golden, device, false), recorded = Run(golden, device, true);
    line["problem"] = Problem(golden, plain, recorded, &differences);
    line["largest"] = differences.largest;
    line["mean"] = differences.mean();
    line["replayed_steps"] = recorded.replayed_steps;
  } catch (const std::exception& failure) {
    const std::string what = failure.what();
    line["problem"] = what.substr(0, what.find('\n'));
  }
  return line;
}

// Not the converter's cases, and not the one whose recorded decoding leaves its calibration out.
bool HasGreedy(const std::string& directory) {
  if (std::filesystem::path(directory).filename() == "bhyt_calibration") return false;
  return !model::OpenGolden(directory).generated.empty();
}

int Main(int argc, char** argv) {
  CLI::App app("golden cases on a device");
  std::string device_name = "cuda";
  std::vector<std::string> cases;
  app.add_option("--device", device_name, "cuda or cuda-emulated")
      ->check(CLI::IsMember({"cuda", "cuda-emulated"}));
  app.add_option("cases", cases, "names of cases; all by default");
  bool dependent_launch = false;
  app.add_flag("--dependent-launch", dependent_launch, "as the server's");
  CLI11_PARSE(app, argc, argv);
  const auto device = OpenDeviceOrExit(device_name);
  const std::string fault = dependent_launch ? device->UseDependentLaunch() : "";
  if (!fault.empty()) {
    std::fprintf(stderr, "--dependent-launch: %s\n", fault.c_str());
    return 2;
  }
  for (const std::string& directory : model::GoldenDirectories()) {
    const std::string name = std::filesystem::path(directory).filename();
    if (!cases.empty() && std::find(cases.begin(), cases.end(), name) == cases.end()) continue;
    if (!HasGreedy(directory)) continue;
    std::printf("%s\n", Check(directory, device.get()).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace normserve::engine

int main(int argc, char** argv) { return normserve::engine::Main(argc, argv); }
