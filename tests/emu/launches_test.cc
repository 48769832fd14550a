// SPDX-License-Identifier: Apache-2.0
// How many kernels a decode step launches per layer, for each architecture; prints the table of docs/cuda.md.
// A matrix product counts as one launch, whatever stands in for it here.
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/golden_case.h"

namespace normserve::model {
namespace {

uint64_t EmulatedLaunches() {
  static const auto count = [] {
    const auto plugin =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "normserve_cuda_emulated.so";
    void* library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_NOLOAD);  // load_emulated.cc has opened it
    return reinterpret_cast<uint64_t (*)()>(dlsym(library, "normserve_emulated_launches"));
  }();
  return count();
}

struct StepLaunches {
  uint64_t layer = 0;  // from one layer's attention to the next one's
  uint64_t whole = 0;  // with embedding, final norm and logits
  uint64_t layers = 0;
};

// What a step launches, written down as its operators begin and end.
struct Trace {
  uint64_t products = 0;
  uint64_t inside_products = 0;  // launches of the kernels that stand in for products
  uint64_t product_began = 0;
  int depth = 0;                    // of operators of ours
  size_t layers = 0;
  std::vector<uint64_t> attention;  // Launches() where each layer's attention begins
  std::set<std::string> others;     // LibTorch's own operators from the first attention to the last

  bool InLayers() const { return !attention.empty() && attention.size() < layers; }

  uint64_t Launches() const { return EmulatedLaunches() - inside_products + products; }
  StepLaunches Summary(uint64_t whole_step) const {
    EXPECT_GE(layers, 2u);
    EXPECT_EQ(attention.size(), layers);
    if (attention.size() != layers || layers < 2) return {};
    const uint64_t layer = attention[1] - attention[0];
    for (size_t i = 2; i < layers; ++i) EXPECT_EQ(attention[i] - attention[i - 1], layer) << "layer " << i;
    return {layer, whole_step, layers};
  }
};
Trace* trace = nullptr;

bool IsOurs(const at::RecordFunction& f) { return std::string(f.name()).rfind("normserve::", 0) == 0; }

std::unique_ptr<at::ObserverContext> OnBegin(const at::RecordFunction& f) {
  const std::string name = f.name();
  if (name == "normserve::paged_attention") trace->attention.push_back(trace->Launches());
  if (name == "normserve::linear") trace->product_began = EmulatedLaunches();
  if (IsOurs(f)) {
    ++trace->depth;
  } else if (trace->depth == 0 && trace->InLayers()) {
    trace->others.insert(name);
  }
  return nullptr;
}

void OnEnd(const at::RecordFunction& f, at::ObserverContext*) {
  if (IsOurs(f)) --trace->depth;
  if (std::string(f.name()) != "normserve::linear") return;
  ++trace->products;
  trace->inside_products += EmulatedLaunches() - trace->product_began;
}

// Views and allocations.
const std::set<std::string> kLaunchNothing = {"aten::as_strided", "aten::empty",  "aten::narrow",
                                              "aten::select",     "aten::slice", "aten::view"};

// Of one decode step after a prompt.
StepLaunches Count(const std::string& directory) {
  const GoldenCase golden = OpenGolden(directory);
  auto lm = CausalLm::Load(golden.model_directory, {});
  EXPECT_TRUE(lm.ok()) << lm.status();
  if (!lm.ok()) return {};
  SequenceRunner runner(**lm, 1, static_cast<int64_t>(golden.prompt.size()) + 1);
  runner.Feed({golden.prompt});
  Trace recorded;
  recorded.layers = static_cast<size_t>((*lm)->description().layer_count);
  trace = &recorded;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(OnBegin, OnEnd).scopes({at::RecordScope::FUNCTION}));
  const uint64_t before = recorded.Launches();
  runner.Feed({{golden.generated.front()}});
  at::removeCallback(handle);
  for (const std::string& name : recorded.others) {
    EXPECT_EQ(kLaunchNothing.count(name), 1u) << name << " is a kernel of LibTorch's on a GPU";
  }
  return recorded.Summary(recorded.Launches() - before);
}

struct Architecture {
  const char* name;
  const char* golden;
  uint64_t per_layer;
};
// Nine: four products, and one launch each for q, k and v, attention, the activation, and two norms after the
// residual additions; those additions ride in a product or in a norm. A norm that needs no statistic of its row
// (DyT's, BHyT's second, whose statistic is carried) rides in the product before it.
constexpr Architecture kArchitectures[] = {
    {"pre-norm Llama (RMSNorm)", "golden/bhyt_rms_gqa", 9},
    {"BHyT", "golden/bhyt_kappa_grow", 8},
    {"BHyT*", "golden/bhytstar_last0", 9},
    {"LNS", "golden_own/lns", 9},
    {"DyT", "golden_own/dyt", 7},
    {"Peri-LN", "golden_own/peri", 9},
    {"SimpleGPT", "golden/sg_simplegpt_rms_gqa_llama3", 9},
    {"its pre-norm baseline", "golden/sg_prenorm_rms_gqa_llama2", 9},
    {"its pre-norm baseline with QK-norm", "golden/sg_preqknorm_rms_gqa_llama3", 9},
    {"nanoGPT", "golden_own/nanogpt", 9},
};

TEST(Launches, NoNormAddsALaunchToThoseOfAPreNormLlama) {
  std::string table = "| architecture | checkpoint | per layer | whole step |\n|---|---|---|---|\n";
  std::map<std::string, StepLaunches> of;
  for (const Architecture& a : kArchitectures) {
    SCOPED_TRACE(a.golden);
    const StepLaunches& step = of[a.name] = Count(a.golden);
    EXPECT_EQ(step.layer, a.per_layer);
    table += "| " + std::string(a.name) + " | `tests/" + a.golden + "` | " + std::to_string(step.layer) +
             " | " + std::to_string(step.whole) + " for " + std::to_string(step.layers) + " layers |\n";
  }
  std::printf("%s", table.c_str());
  // SimpleGPT's seven norms among them.
  const uint64_t llama = of["pre-norm Llama (RMSNorm)"].layer;
  for (const auto& [name, step] : of) EXPECT_LE(step.layer, llama) << name;
}

}  // namespace
}  // namespace normserve::model
