// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes: runs a model's forward pass and head without server or scheduler, on made-up
// tokens, and prints the time of each operator. LibTorch's dispatcher reports every operator to an
// observer; its own cost (under a microsecond an operator) is inside "total", not inside the parts.
//   step_bench MODEL_DIR [--dtype bfloat16] [--quantize int8] [--threads 2] [--context 128] [--steps 20] ROWS...
// ROWS: "8" decodes 8 sequences at the given context; "p512" prefills one prompt of 512 tokens.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "kernels/thread_pool.h"
#include "model/causal_lm.h"

namespace normserve {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Time by operator name; the operators of a step follow each other on one thread.
std::map<std::string, double>& Totals() {
  static std::map<std::string, double> totals;
  return totals;
}

struct Started : at::ObserverContext {
  Clock::time_point at = Clock::now();
};

void Observe() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            return std::make_unique<Started>();
          },
          [](const at::RecordFunction& function, at::ObserverContext* context) {
            const Clock::time_point end = Clock::now();
            const std::string name = function.name();
            if (name.rfind("normserve::", 0) != 0) return;
            Totals()[name.substr(11)] += Seconds(static_cast<Started*>(context)->at, end);
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
    return {View(ids, {n}),      View(positions, {n}),
            View(slots, {n}),    View(sequence, {n}),
            View(tables, {sequences, static_cast<int64_t>(tables.size()) / sequences}),
            View(rows, {static_cast<int64_t>(rows.size())})};
  }
};

void Measure(model::CausalLm& model, const std::string& name, const Shape& shape, int steps) {
  constexpr int64_t kBlock = 16;
  const model::ModelDescription& d = model.description();
  Step step(shape, kBlock, d.vocab_size);
  const model::StepInput input = step.Input(shape.sequences);
  model::KvCache cache = model.MakeCache(static_cast<int64_t>(step.tables.size()), kBlock);
  at::Tensor logits = at::empty({shape.sequences, d.vocab_size}, at::kFloat);
  const auto run = [&] { model.Logits(model.Forward(input, cache), logits); };
  run();
  Totals().clear();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < steps; ++i) run();
  const double total = Seconds(begin, Clock::now()) / steps;
  std::printf("%s: %.3f ms a step, %.1f tokens/s\n", name.c_str(), total * 1e3,
              static_cast<double>(shape.tokens) / total);
  double parts = 0.0;
  for (const auto& [op, seconds] : Totals()) {
    parts += seconds / steps;
    std::printf("  %-24s %8.3f ms %5.1f %%\n", op.c_str(), seconds / steps * 1e3,
                100.0 * seconds / steps / total);
  }
  std::printf("  %-24s %8.3f ms %5.1f %%\n", "between operators", (total - parts) * 1e3,
              100.0 * (total - parts) / total);
}

int Main(int argc, char** argv) {
  CLI::App app("time of a step by operator");
  std::string directory, dtype = "bfloat16", quantize = "none";
  int threads = 2, steps = 20;
  int64_t context = 128;
  std::vector<std::string> rows = {"1", "8", "32", "p128", "p512"};
  app.add_option("model", directory, "checkpoint folder")->required();
  app.add_option("--dtype", dtype, "float32 or bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--quantize", quantize, "none, int8 or int4 (embedding and head: int8)")
      ->check(CLI::IsMember({"none", "int8", "int4"}));
  app.add_option("--threads", threads, "compute threads");
  app.add_option("--context", context, "tokens already in the cache of a decoding sequence");
  app.add_option("--steps", steps, "steps to average over");
  app.add_option("rows", rows, "decode batch sizes, or pN for a prompt of N tokens");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  kernels::ThreadPool pool(threads);
  const kernels::ScopedPool scope(&pool);
  model::LoadOptions options;
  options.dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
  if (quantize == "int8") options.quantize = model::Quantization::kInt8;
  if (quantize == "int4") options.quantize = model::Quantization::kInt4;
  if (quantize != "none") options.quantize_head = model::Quantization::kInt8;
  auto model = model::CausalLm::Load(directory, options);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  Observe();
  for (const std::string& row : rows) {
    const bool prefill = row[0] == 'p';
    const int64_t n = std::stoll(row.substr(prefill ? 1 : 0));
    Measure(**model, row, prefill ? Shape{n, 1, 0} : Shape{n, n, context}, steps);
  }
  return 0;
}

}  // namespace
}  // namespace normserve

int main(int argc, char** argv) { return normserve::Main(argc, argv); }
