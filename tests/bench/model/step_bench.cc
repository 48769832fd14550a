// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes: runs models' forward pass and head without server or scheduler, on made-up
// tokens, and prints the time of each operator. LibTorch's dispatcher reports every operator to an
// observer; its own cost (under a microsecond an operator) is inside "total", not inside the parts.
//   step_bench MODEL_DIR... [--rows 1 8 p512] [--steps 20] [--rounds 1] [--json-out FILE] ...
// A row "8" decodes 8 sequences at the given context; "p512" prefills one prompt of 512 tokens. With several
// models and rounds, each round runs `steps` steps of one model after the other, in turns that begin with
// another model each time; the ratio to the first model is the median of the rounds' own ratios.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simd_target.h"
#include "kernels/thread_pool.h"
#include "model/causal_lm.h"

namespace normserve {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Time by operator name, without that of operators inside; the operators of a step follow each other on one thread.
std::map<std::string, double>& Totals() {
  static std::map<std::string, double> totals;
  return totals;
}

struct Started : at::ObserverContext {
  Started* around = Innermost();
  double inside = 0.0;  // seconds of operators inside
  Clock::time_point at = Clock::now();

  static Started*& Innermost() {
    static Started* innermost = nullptr;
    return innermost;
  }
};

void Observe() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
            if (std::string(function.name()).rfind("normserve::", 0) != 0) return nullptr;
            auto started = std::make_unique<Started>();
            Started::Innermost() = started.get();
            return started;
          },
          [](const at::RecordFunction& function, at::ObserverContext* context) {
            if (context == nullptr) return;
            const auto* started = static_cast<Started*>(context);
            const double seconds = Seconds(started->at, Clock::now());
            Totals()[std::string(function.name()).substr(11)] += seconds - started->inside;
            if (started->around != nullptr) started->around->inside += seconds;
            Started::Innermost() = started->around;
          })
          .scopes({at::RecordScope::FUNCTION}));
}

struct Shape {
  int64_t tokens = 0;     // of one step
  int64_t sequences = 0;  // that they belong to
  int64_t first = 0;      // position of each sequence's first token
};

// Owns a step's integers; StepInput only looks at them.
struct Step {
  std::vector<int32_t> ids, positions, slots, sequence, tables, rows;

  Step(const Shape& shape, int64_t block_size, int64_t vocab) {
    const int64_t each = shape.tokens / shape.sequences;
    const int64_t blocks = (shape.first + each + block_size - 1) / block_size;
    for (int64_t s = 0; s < shape.sequences; ++s) {
      for (int64_t i = 0; i < each; ++i) {
        const int64_t position = shape.first + i;
        ids.push_back(static_cast<int32_t>((s * 7919 + i * 104729) % vocab));
        positions.push_back(static_cast<int32_t>(position));
        slots.push_back(static_cast<int32_t>(s * blocks * block_size + position));
        sequence.push_back(static_cast<int32_t>(s));
      }
      for (int64_t b = 0; b < blocks; ++b) tables.push_back(static_cast<int32_t>(s * blocks + b));
      rows.push_back(static_cast<int32_t>((s + 1) * each - 1));
    }
  }

  static at::Tensor View(std::vector<int32_t>& v, at::IntArrayRef sizes) {
    return at::from_blob(v.data(), sizes, at::kInt);
  }
  model::StepInput Input(int64_t sequences) {
    const int64_t n = static_cast<int64_t>(ids.size());
    model::StepInput input{View(ids, {n}),      View(positions, {n}),
                           View(slots, {n}),    View(sequence, {n}),
                           View(tables, {sequences, static_cast<int64_t>(tables.size()) / sequences}),
                           View(rows, {static_cast<int64_t>(rows.size())})};
    input.every_token = rows.size() == ids.size();
    return input;
  }
};

// One model with one shape: its inputs, and the seconds of a step in every round.
class Runner {
 public:
  Runner(model::CausalLm& model, const Shape& shape, int64_t block_size)
      : model_(model),
        step_(shape, block_size, model.description().vocab_size),
        input_(step_.Input(shape.sequences)),
        cache_(model.MakeCache(static_cast<int64_t>(step_.tables.size()), block_size)),
        logits_(at::empty({shape.sequences, model.description().vocab_size}, at::kFloat)) {
    RunOnce();
  }

  void Round(int steps) {
    Totals().clear();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < steps; ++i) RunOnce();
    seconds_.push_back(Seconds(begin, Clock::now()) / steps);
    for (const auto& [op, seconds] : Totals()) ops_[op].push_back(seconds / steps);
  }

  const std::vector<double>& seconds() const { return seconds_; }
  const std::map<std::string, std::vector<double>>& ops() const { return ops_; }

 private:
  void RunOnce() { model_.Logits(model_.Forward(input_, cache_), logits_); }

  model::CausalLm& model_;
  Step step_;
  model::StepInput input_;  // looks at step_'s vectors, which keep their memory when they move
  model::KvCache cache_;
  at::Tensor logits_;
  std::vector<double> seconds_;
  std::map<std::string, std::vector<double>> ops_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Interval {
  double low, high;
};

// Of the median, from order statistics: the chance that it lies outside is at most 5 % whatever the
// distribution (both tails of a binomial with p = 1/2). With fewer than 6 values: their whole range.
Interval MedianInterval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  double tail = std::pow(0.5, static_cast<double>(n)), term = tail;  // P(at most k of n below)
  size_t k = 0;
  while (k + 1 < n / 2) {
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    if (tail + term > 0.025) break;
    tail += term;
    ++k;
  }
  return {values[k], values[n - 1 - k]};
}

void PrintBreakdown(const Runner& run, double total) {
  double parts = 0.0;
  const auto line = [&](const char* name, double seconds) {
    std::printf("  %-24s %8.3f ms %5.1f %%\n", name, seconds * 1e3, 100.0 * seconds / total);
  };
  for (const auto& [op, seconds] : run.ops()) {
    const double median = Median(seconds);
    parts += median;
    line(op.c_str(), median);
  }
  line("between operators", total - parts);
}

struct Settings {
  std::vector<std::string> directories, rows = {"1", "8", "32", "p128", "p512"};
  std::string dtype = "bfloat16", kv_cache_dtype = "auto", quantize = "none", json_out, simd;
  int threads = 2, steps = 20, rounds = 1;
  int64_t context = 128;
  int64_t block_size = 32;
};

Shape ShapeOf(const std::string& row, int64_t context) {
  const bool prefill = row[0] == 'p';
  const int64_t n = std::stoll(row.substr(prefill ? 1 : 0));
  return prefill ? Shape{n, 1, 0} : Shape{n, n, context};
}

nlohmann::json Measure(const Settings& settings,
                       const std::vector<std::unique_ptr<model::CausalLm>>& models,
                       const std::string& row) {
  const Shape shape = ShapeOf(row, settings.context);
  std::vector<Runner> runs;
  for (const auto& model : models) runs.emplace_back(*model, shape, settings.block_size);
  for (int round = 0; round < settings.rounds; ++round) {
    for (size_t i = 0; i < runs.size(); ++i) {
      runs[(i + static_cast<size_t>(round)) % runs.size()].Round(settings.steps);
    }
  }
  nlohmann::json out = nlohmann::json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    const double total = Median(runs[i].seconds());
    std::printf("%s %s: %.3f ms a step, %.1f tokens/s\n", row.c_str(),
                settings.directories[i].c_str(), total * 1e3,
                static_cast<double>(shape.tokens) / total);
    nlohmann::json entry = {{"row", row},
                            {"model", settings.directories[i]},
                            {"tokens_per_step", shape.tokens},
                            {"seconds", runs[i].seconds()}};
    for (const auto& [op, seconds] : runs[i].ops()) entry["ops"][op] = Median(seconds);
    if (i > 0) {
      std::vector<double> ratios;
      for (size_t r = 0; r < runs[i].seconds().size(); ++r) {
        ratios.push_back(runs[0].seconds()[r] / runs[i].seconds()[r]);
      }
      const Interval interval = MedianInterval(ratios);
      std::printf("  %.4f times as fast as the first, 95 %% interval %.4f to %.4f\n",
                  Median(ratios), interval.low, interval.high);
      entry["ratio"] = {{"median", Median(ratios)}, {"low", interval.low}, {"high", interval.high}};
    }
    PrintBreakdown(runs[i], total);
    out.push_back(std::move(entry));
  }
  std::fflush(stdout);
  return out;
}

int Main(int argc, char** argv) {
  CLI::App app("time of a step by operator");
  Settings settings;
  app.add_option("models", settings.directories, "checkpoint folders")->required();
  app.add_option("--dtype", settings.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--kv-cache-dtype", settings.kv_cache_dtype, "auto or int8, as the server's")
      ->check(CLI::IsMember({"auto", "int8"}));
  app.add_option("--quantize", settings.quantize, "none, int8 or int4 (embedding and head: int8)")
      ->check(CLI::IsMember({"none", "int8", "int4"}));
  app.add_option("--threads", settings.threads, "compute threads");
  app.add_option("--block-size", settings.block_size, "tokens per block of the cache, as the server's")
      ->check([](const std::string& text) {
        const std::string range = CLI::Range(16, 1024)(text);
        return range.empty() && std::stoi(text) % 16 != 0 ? text + ": allowed: multiples of 16" : range;
      });
  app.add_option("--context", settings.context, "tokens already in the cache of a decoding sequence");
  app.add_option("--steps", settings.steps, "steps to average over in a round")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", settings.rounds, "rounds to take medians of")->check(CLI::PositiveNumber);
  app.add_option("--json-out", settings.json_out, "file for everything measured");
  app.add_option("--simd", settings.simd, "best SIMD target to use, as the server's");
  app.add_option("--rows", settings.rows, "decode batch sizes, or pN for a prompt of N tokens");
  CLI11_PARSE(app, argc, argv);
  if (!settings.simd.empty() && !kernels::LimitSimdTarget(settings.simd.c_str())) {
    std::fprintf(stderr, "--simd: %s, allowed %s\n", settings.simd.c_str(), kernels::SimdTargetList().c_str());
    return 1;
  }
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  kernels::ThreadPool pool(settings.threads);
  const kernels::ScopedPool scope(&pool);
  model::LoadOptions options;
  options.dtype = settings.dtype == "float32" ? at::kFloat : at::kBFloat16;
  options.int8_cache = settings.kv_cache_dtype == "int8";
  if (settings.quantize == "int8") options.quantize = model::Quantization::kInt8;
  if (settings.quantize == "int4") options.quantize = model::Quantization::kInt4;
  if (settings.quantize != "none") options.quantize_head = model::Quantization::kInt8;
  std::vector<std::unique_ptr<model::CausalLm>> models;
  for (const std::string& directory : settings.directories) {
    auto model = model::CausalLm::Load(directory, options);
    if (!model.ok()) {
      std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
      return 1;
    }
    models.push_back(*std::move(model));
  }
  Observe();
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& row : settings.rows) {
    for (auto& entry : Measure(settings, models, row)) results.push_back(std::move(entry));
  }
  if (!settings.json_out.empty()) std::ofstream(settings.json_out) << results.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace normserve

int main(int argc, char** argv) { return normserve::Main(argc, argv); }
