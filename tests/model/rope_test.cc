// SPDX-License-Identifier: Apache-2.0
// Rotary tables against those of transformers' LlamaRotaryEmbedding (rope_reference.json says which).
// Also vllm-project/vllm 9481: both spellings of the type key.
#include "model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <fstream>

#include "model/config.h"
#include "nlohmann/json.hpp"

namespace normserve::model {
namespace {

nlohmann::json Reference() {
  std::ifstream file("model/rope_reference.json");
  return nlohmann::json::parse(file);
}

ModelConfig Parse(const nlohmann::json& rope) {
  nlohmann::json config = {{"model_type", "llama"},    {"vocab_size", 16},
                           {"hidden_size", 8},         {"intermediate_size", 8},
                           {"num_hidden_layers", 1},   {"num_attention_heads", 2}};
  config.update(rope);
  auto parsed = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

at::Tensor Floats(const nlohmann::json& values) {
  const auto doubles = values.get<std::vector<double>>();
  return at::tensor(at::ArrayRef<double>(doubles), at::kDouble);
}

double Largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

TEST(Rope, EqualsTransformers) {
  const nlohmann::json reference = Reference();
  ASSERT_GE(reference["cases"].size(), 8u);
  for (const auto& [name, item] : reference["cases"].items()) {
    SCOPED_TRACE(name);
    const ModelConfig config = Parse(item["config"]);
    const RopeFrequencies got =
        MakeRopeFrequencies(config.rope, config.head_dim, config.max_positions);
    const at::Tensor inverse = Floats(item["inverse"]);
    EXPECT_LE(Largest(got.inverse.to(at::kDouble) / inverse - 1.0), 5e-7);
    EXPECT_NEAR(got.attention_factor, item["attention_factor"].get<double>(), 1e-12);
    const at::Tensor table = MakeRopeTable(config.rope, config.head_dim, config.max_positions);
    ASSERT_EQ(table.size(0), config.max_positions);
    const int64_t half = config.head_dim / 2;
    for (size_t p = 0; p < item["positions"].size(); ++p) {
      const at::Tensor row = table[item["positions"][p].get<int64_t>()].to(at::kDouble);
      EXPECT_LE(Largest(row.slice(0, 0, half) - Floats(item["cos"][p])), 5e-6) << p;
      EXPECT_LE(Largest(row.slice(0, half) - Floats(item["sin"][p])), 5e-6) << p;
    }
  }
}

TEST(Rope, BothSpellingsOfTheTypeKey) {
  for (const char* key : {"type", "rope_type"}) {
    const ModelConfig config = Parse({{"rope_scaling", {{key, "linear"}, {"factor", 2.0}}}});
    EXPECT_EQ(config.rope.type, RopeType::kLinear) << key;
    EXPECT_EQ(config.rope.factor, 2.0);
  }
}

TEST(Rope, AbsentNullAndDefaultMeanNoScaling) {
  for (const nlohmann::json& rope :
       {nlohmann::json::object(), nlohmann::json{{"rope_scaling", nullptr}},
        nlohmann::json{{"rope_scaling", "None"}},
        nlohmann::json{{"rope_scaling", {{"rope_type", "default"}}}},
        nlohmann::json{{"rope_scaling", {{"type", nullptr}}}}}) {
    EXPECT_EQ(Parse(rope).rope.type, RopeType::kDefault) << rope;
  }
}

TEST(Rope, LearnedPositionsHaveNoTable) {
  EXPECT_FALSE(MakeRopeTable(RopeConfig{}, 8, 32).defined());
}

}  // namespace
}  // namespace normserve::model
