// SPDX-License-Identifier: Apache-2.0
// What each family's config becomes, and what it refuses.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace normserve::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

json Torchtitan(int64_t dim, const json& multiplier, int64_t multiple_of) {
  return {{"architecture", "SimpleGPT"},
          {"model_args",
           {{"dim", dim}, {"n_layers", 2}, {"n_heads", 16}, {"n_kv_heads", nullptr},
            {"vocab_size", 32000}, {"multiple_of", multiple_of},
            {"ffn_dim_multiplier", multiplier}, {"norm_eps", 1e-5}, {"rope_theta", 10000},
            {"max_seq_len", 2048}, {"norm_type", "rmsnorm"}}}};
}

// The published shapes: Llama 2 1B and 7B, Llama 3 8B.
TEST(Config, TorchtitanFeedForwardWidth) {
  EXPECT_EQ(Parse(Torchtitan(2048, nullptr, 256))->ffn, 5632);
  EXPECT_EQ(Parse(Torchtitan(4096, nullptr, 256))->ffn, 11008);
  EXPECT_EQ(Parse(Torchtitan(4096, 1.3, 1024))->ffn, 14336);
  EXPECT_EQ(Parse(Torchtitan(64, 0.65, 8))->ffn, 112);
}

TEST(Config, TorchtitanLimitsContextToMaxSeqLen) {
  const auto config = Parse(Torchtitan(64, nullptr, 8));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_positions, 2048);
  EXPECT_EQ(config->kv_heads, 16);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_FALSE(config->tied_head);
}

TEST(Config, BothSpellingsOfTorchtitansPreNorm) {
  for (const char* name : {"PreNormTransformer", "PrenormTransformer"}) {
    json config = Torchtitan(64, nullptr, 8);
    config["architecture"] = name;
    EXPECT_EQ(Parse(config)->architecture, Architecture::kPreNorm) << name;
  }
}

TEST(Config, NanoGpt) {
  json config = {{"architecture", "nanogpt"},
                 {"model_args", {{"n_layer", 2}, {"n_head", 4}, {"n_embd", 32},
                                 {"block_size", 64}, {"vocab_size", 65}, {"dropout", 0.0}}}};
  const auto plain = Parse(config);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->tied_head);
  EXPECT_TRUE(plain->attention_bias) << "nanoGPT's own default";
  EXPECT_EQ(plain->norm_type, "layernorm");
  EXPECT_EQ(plain->ffn, 128);
  EXPECT_EQ(plain->rope.type, RopeType::kNone);
  config["architecture"] = "simple_nanogpt";
  EXPECT_FALSE(Parse(config)->attention_bias);
  EXPECT_EQ(Parse(config)->norm_type, "rmsnorm");
  config["model_args"]["n_head"] = 5;
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("n_head is 5"));
}

struct BadArgs {
  const char* key;
  json value;
  const char* expected;
};

TEST(Config, TorchtitanRefusesByKey) {
  for (const BadArgs& bad : std::vector<BadArgs>{{"dim", 0, "dim is 0"},
                                                 {"dim", "64", "dim is \"64\""},
                                                 {"n_heads", 7, "n_heads is 7"},
                                                 {"n_kv_heads", 3, "n_kv_heads is 3"},
                                                 {"n_layers", -1, "n_layers is -1"},
                                                 {"multiple_of", 0, "multiple_of is 0"},
                                                 {"ffn_dim_multiplier", -2.0, "ffn_dim_multiplier"},
                                                 {"ffn_dim_multiplier", 1e3, "ffn_dim_multiplier"},
                                                 {"max_seq_len", 0, "max_seq_len is 0"},
                                                 {"norm_eps", -1e-5, "norm_eps"}}) {
    json config = Torchtitan(65536, nullptr, 256);
    config["model_args"]["n_heads"] = 64;
    config["model_args"][bad.key] = bad.value;
    const auto parsed = Parse(config);
    ASSERT_FALSE(parsed.ok()) << bad.key << " " << bad.value;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad.expected));
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("model_args"));
  }
  EXPECT_FALSE(Parse({{"architecture", "SimpleGPT"}}).ok());
  EXPECT_FALSE(Parse({{"architecture", "SimpleGPT"}, {"model_args", 3}}).ok());
}

TEST(Config, NotJson) {
  for (const char* text : {"", "[]", "{\"a\": }", "{\"a\":1,\"a\":2}", "null"}) {
    const auto parsed = ParseModelConfig(text, "config.json");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("config.json"));
  }
  EXPECT_FALSE(ParseModelConfig(std::string(1 << 20, '{'), "config.json").ok());
}

}  // namespace
}  // namespace normserve::model
