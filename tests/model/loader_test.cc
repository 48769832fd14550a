// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are not right: each is refused with a sentence that names file and tensor or key,
// and nothing is ever made up for a missing norm parameter.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/causal_lm.h"
#include "model/crafted_checkpoint.h"

namespace normserve::model {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct BadCheckpoint {
  const char* name;
  const char* norm_type;
  std::function<void(json& config, Tensors& tensors)> bend;
  const char* file;
  const char* named;  // tensor or key
};

void PrintTo(const BadCheckpoint& bad, std::ostream* out) { *out << bad.name; }

const char kWeights[] = "model.safetensors";
const char kConfig[] = "config.json";

std::vector<BadCheckpoint> BadTensors() {
  const auto drop = [](const std::string& tensor) {
    return [tensor](json&, Tensors& t) { ASSERT_EQ(t.erase(tensor), 1u); };
  };
  const auto put = [](const std::string& tensor, at::Tensor value) {
    return [tensor, value](json&, Tensors& t) { t[tensor] = value; };
  };
  const at::Tensor ones = at::ones({8});
  return {
      {"MissingEmbedding", "rms", drop("model.embed_tokens.weight"), kWeights,
       "model.embed_tokens.weight"},
      {"MissingHeadOfUntied", "rms", drop("lm_head.weight"), kWeights, "lm_head.weight"},
      {"MissingFinalNorm", "rms", drop("model.norm.weight"), kWeights, "model.norm.weight"},
      {"MissingGamma", "bhyt", drop("model.layers.1.input_layernorm.weight"), kWeights,
       "model.layers.1.input_layernorm.weight"},
      {"MissingLam", "bhyt", drop("model.layers.1.post_attention_layernorm.lam"), kWeights,
       "model.layers.1.post_attention_layernorm.lam"},
      {"MissingAlpha", "dyt", drop("model.norm.alpha"), kWeights, "model.norm.alpha"},
      {"MissingPeriNorm", "peri", drop("model.layers.0.pre_feedforward_layernorm.weight"), kWeights,
       "model.layers.0.pre_feedforward_layernorm.weight"},
      {"MissingDownProjection", "rms", drop("model.layers.0.mlp.down_proj.weight"), kWeights,
       "model.layers.0.mlp.down_proj.weight"},
      {"MisShapedGamma", "rms", put("model.layers.0.input_layernorm.weight", at::ones({7})),
       kWeights, "model.layers.0.input_layernorm.weight has shape [7]"},
      {"MisShapedWeight", "rms", put("model.layers.0.self_attn.k_proj.weight", at::ones({8, 8})),
       kWeights, "model.layers.0.self_attn.k_proj.weight has shape [8, 8]"},
      {"LamOfTwoValues", "bhyt", put("model.layers.0.input_layernorm.lam", at::ones({2})), kWeights,
       "model.layers.0.input_layernorm.lam has shape [2]"},
      {"LamNotFinite", "bhyt",
       put("model.layers.0.input_layernorm.lam", at::full({1}, INFINITY)), kWeights,
       "model.layers.0.input_layernorm.lam"},
      {"LamInAnRmsCheckpoint", "rms", put("model.layers.0.input_layernorm.lam", at::ones({1})),
       kWeights, "model.layers.0.input_layernorm.lam is unknown"},
      {"FinalLamWithoutFinalBhyt", "bhyt", put("model.norm.lam", at::ones({1})), kWeights,
       "model.norm.lam is unknown"},
      {"VarBetaWithBaseline", "bhyt", put("model.layers.0.var_beta", at::ones({})), kWeights,
       "model.layers.0.var_beta is unknown"},
      {"BiasWithoutItsSwitch", "rms", put("model.layers.0.self_attn.q_proj.bias", ones), kWeights,
       "model.layers.0.self_attn.q_proj.bias is unknown"},
      {"SharedScaleWithoutItsSwitch", "bhyt", put("model.shared_scale", at::ones({1})), kWeights,
       "model.shared_scale is unknown"},
      {"LayerTooMany", "rms", put("model.layers.2.input_layernorm.weight", ones), kWeights,
       "model.layers.2.input_layernorm.weight is unknown"},
      {"MisShapedRedundantHead", "rms",
       [](json& c, Tensors& t) {
         c["tie_word_embeddings"] = true;
         t["lm_head.weight"] = at::ones({15, 8});
       },
       kWeights, "lm_head.weight has shape [15, 8]"},
  };
}

std::vector<BadCheckpoint> BadConfigs() {
  const auto set = [](const std::string& key, json value) {
    return [key, value](json& c, Tensors&) { c[key] = value; };
  };
  const auto drop = [](const std::string& key) {
    return [key](json& c, Tensors&) { c.erase(key); };
  };
  const json llama3 = {{"rope_type", "llama3"}, {"factor", 8.0}};
  return {
      {"VarBetaMissing", "bhyt", set("var_approx_method", "beta"), kWeights, "var_beta is missing"},
      {"VarAlphaMissing", "bhyt", set("var_approx_method", "residual_aware"), kWeights,
       "var_alpha is missing"},
      {"SeqLenMissing", "bhyt", drop("seq_len"), kConfig, "--bhyt-seq-len"},
      {"SeqLenZero", "bhyt", set("seq_len", 0), kConfig, "seq_len is 0"},
      {"LastLayerLamMissing", "bhyt", drop("last_layer_lam"), kConfig, "last_layer_lam is missing"},
      {"UnknownNormType", "rms", set("norm_type", "batchnorm"), kConfig,
       "known here: rms, bhyt, bhytline, bhytstar, bhytstar_mean, lns, peri, dyt"},
      {"NormTypeOfAnotherFamily", "rms", set("norm_type", "np_layernorm"), kConfig, "norm_type"},
      {"NormTypeANumber", "rms", set("norm_type", 3), kConfig, "norm_type is 3"},
      {"UnknownMethod", "bhyt", set("var_approx_method", "gamma"), kConfig,
       "baseline, beta, eta, residual_aware"},
      {"UnknownSchedule", "bhyt", set("bhyt_kappa_schedule", "linear"), kConfig,
       "none, decay, grow, mild_grow"},
      {"UnknownVarDtype", "bhyt", set("inference_var_dtype", "half"), kConfig, "float32, input"},
      {"UnknownFallback", "bhyt", set("fallback_norm_type", "lns"), kConfig, "rms, bhytstar"},
      {"LayerRangeReversed", "bhyt", set("bhyt_layer_range", {1, 0}), kConfig, "bhyt_layer_range"},
      {"ExactListNotNumbers", "bhyt", set("var_approx_exact_layer_list", "0,x"), kConfig,
       "var_approx_exact_layer_list"},
      {"CalibrationTooLong", "bhyt", set("var_approx_calibration", {1.0, 1.0, 1.0}), kConfig,
       "var_approx_calibration"},
      {"CalibrationOfStrings", "bhyt", set("var_approx_calibration", {"a"}), kConfig,
       "var_approx_calibration"},
      {"KappaZero", "bhyt", set("bhyt_kappa", 0), kConfig, "bhyt_kappa is 0"},
      {"Gemma2", "rms", set("model_type", "gemma2"), kConfig, "model_type is \"gemma2\""},
      {"NoModelType", "rms", drop("model_type"), kConfig, "model_type is missing"},
      {"UnknownArchitecture", "rms", set("architecture", "Mamba"), kConfig, "SimpleGPT"},
      {"UnknownActivation", "rms", set("hidden_act", "gelu"), kConfig, "silu"},
      {"Quantized", "rms", set("quantization_config", {{"bits", 4}}), kConfig,
       "quantization_config"},
      {"UnknownRope", "rms", set("rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}),
       kConfig, "default, none, linear, dynamic, llama3, yarn"},
      {"UnknownRopeOldSpelling", "rms", set("rope_scaling", {{"type", "su"}, {"factor", 2.0}}),
       kConfig, "type is \"su\""},
      {"RopeWithoutFactor", "rms", set("rope_scaling", {{"type", "linear"}}), kConfig,
       "factor is missing"},
      {"Llama3WithoutItsKeys", "rms", set("rope_scaling", llama3), kConfig,
       "low_freq_factor is missing"},
      {"RopeScalingAString", "rms", set("rope_scaling", "linear"), kConfig, "rope_scaling"},
      {"PartialRotary", "rms", set("partial_rotary_factor", 0.5), kConfig, "partial_rotary_factor"},
      {"NoHiddenSize", "rms", drop("hidden_size"), kConfig, "hidden_size is missing"},
      {"HiddenSizeZero", "rms", set("hidden_size", 0), kConfig, "hidden_size is 0"},
      {"HiddenSizeNegative", "rms", set("hidden_size", -8), kConfig, "hidden_size is -8"},
      {"HiddenSizeAString", "rms", set("hidden_size", "8"), kConfig, "hidden_size"},
      {"HiddenSizeFractional", "rms", set("hidden_size", 8.5), kConfig, "hidden_size is 8.5"},
      {"HiddenSizeAbsurd", "rms", set("hidden_size", 1e18), kConfig, "hidden_size"},
      {"VocabAbsurd", "rms", set("vocab_size", int64_t{1} << 62), kConfig, "vocab_size"},
      {"LayersAbsurd", "rms", set("num_hidden_layers", 1 << 30), kConfig, "num_hidden_layers"},
      {"PositionsAbsurd", "rms", set("max_position_embeddings", int64_t{1} << 40), kConfig,
       "max_position_embeddings"},
      {"HeadsDoNotDivide", "rms", set("num_attention_heads", 3), kConfig, "num_attention_heads"},
      {"KvHeadsDoNotDivide", "rms",
       [](json& c, Tensors&) {
         c["num_attention_heads"] = 4;
         c["num_key_value_heads"] = 3;
       },
       kConfig, "num_key_value_heads is 3"},
      {"OddHeadDim", "rms", set("head_dim", 5), kConfig, "head_dim is 5"},
      {"TiedAString", "rms", set("tie_word_embeddings", "yes"), kConfig, "tie_word_embeddings"},
      {"EosNegative", "rms", set("eos_token_id", -1), kConfig, "eos_token_id"},
      {"EosAListOfStrings", "rms", set("eos_token_id", {"</s>"}), kConfig, "eos_token_id"},
      {"EpsANumberAbove1", "rms", set("rms_norm_eps", 2.0), kConfig, "rms_norm_eps is 2"},
  };
}

class BadCheckpointTest : public testing::TestWithParam<BadCheckpoint> {};

TEST_P(BadCheckpointTest, IsRefusedByName) {
  const BadCheckpoint& bad = GetParam();
  json config = TinyConfig(bad.norm_type);
  Tensors tensors = TinyTensors(bad.norm_type);
  bad.bend(config, tensors);
  const CraftedFolder folder;
  folder.WriteConfig(config);
  folder.Write(kWeights, SafetensorsBytes(tensors));
  const auto lm = CausalLm::Load(folder.path(), {});
  ASSERT_FALSE(lm.ok());
  const std::string message(lm.status().message());
  EXPECT_THAT(message, HasSubstr(std::string("/") + bad.file));
  EXPECT_THAT(message, HasSubstr(bad.named));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

std::string Name(const testing::TestParamInfo<BadCheckpoint>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Tensors, BadCheckpointTest, testing::ValuesIn(BadTensors()), Name);
INSTANTIATE_TEST_SUITE_P(Configs, BadCheckpointTest, testing::ValuesIn(BadConfigs()), Name);

// Without any bending each of them loads: the tests above fail for the reason they name.
TEST(LoaderTest, TinyCheckpointsLoad) {
  for (const char* norm_type :
       {"rms", "bhyt", "bhytline", "bhytstar", "bhytstar_mean", "lns", "peri", "dyt"}) {
    const CraftedFolder folder;
    folder.WriteConfig(TinyConfig(norm_type));
    folder.Write(kWeights, SafetensorsBytes(TinyTensors(norm_type)));
    const auto lm = CausalLm::Load(folder.path(), {});
    ASSERT_TRUE(lm.ok()) << norm_type << ": " << lm.status();
    EXPECT_EQ((*lm)->description().norm_type, norm_type);
  }
}

TEST(LoaderTest, NormTypeOptionOverridesTheConfig) {
  const CraftedFolder folder;
  json config = TinyConfig("rms");
  config.erase("norm_type");
  folder.WriteConfig(config);
  folder.Write(kWeights, SafetensorsBytes(TinyTensors("rms")));
  LoadOptions options;
  options.norm_type = "lns";
  const auto lm = CausalLm::Load(folder.path(), options);
  ASSERT_TRUE(lm.ok()) << lm.status();
  EXPECT_EQ((*lm)->description().norm_type, "lns");
  options.norm_type = "nonsense";
  EXPECT_THAT(std::string(CausalLm::Load(folder.path(), options).status().message()),
              HasSubstr("--norm-type is \"nonsense\"; allowed for architecture llama: rms"));
}

// sgl-project/sglang PR 1508: tied embeddings with or without a head in the file.
TEST(LoaderTest, TiedHeadMayBeMissingOrRedundant) {
  json config = TinyConfig("rms");
  config["tie_word_embeddings"] = true;
  Tensors tensors = TinyTensors("rms");
  for (bool redundant : {true, false}) {
    if (!redundant) tensors.erase("lm_head.weight");
    const CraftedFolder folder;
    folder.WriteConfig(config);
    folder.Write(kWeights, SafetensorsBytes(tensors));
    const auto lm = CausalLm::Load(folder.path(), {});
    ASSERT_TRUE(lm.ok()) << lm.status();
    EXPECT_EQ((*lm)->description().parameter_count, 1128u);
  }
}

at::Tensor Ints(const std::vector<int32_t>& values) { return at::tensor(at::ArrayRef<int32_t>(values), at::kInt); }

// Logits after a prompt of three tokens.
at::Tensor LogitsOf(CausalLm& lm) {
  KvCache cache = lm.MakeCache(1, 16);
  StepInput input;
  input.token_ids = Ints({3, 1, 7});
  input.positions = input.slots = Ints({0, 1, 2});
  input.token_sequence = Ints({0, 0, 0});
  input.block_tables = Ints({0}).view({1, 1});
  input.logits_rows = Ints({2});
  at::Tensor logits = at::zeros({1, 16});
  lm.Logits(lm.Forward(input, cache), logits);
  return logits;
}

TEST(LoaderTest, SixteenBitWeightsStaySoAndGiveTheBitsOfWidenedOnes) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    uint64_t bytes[2];
    at::Tensor logits[2];
    for (const bool widened : {false, true}) {
      Tensors tensors = TinyTensors("rms");
      for (auto& [name, tensor] : tensors) {
        if (tensor.dim() == 2) tensor = tensor.to(dtype);
        if (widened) tensor = tensor.to(at::kFloat);
      }
      const CraftedFolder folder;
      folder.WriteConfig(TinyConfig("rms"));
      folder.Write(kWeights, SafetensorsBytes(tensors));
      LoadOptions options;
      options.fold = LoadOptions::Fold::kOff;
      const auto lm = CausalLm::Load(folder.path(), options);
      ASSERT_TRUE(lm.ok()) << lm.status();
      bytes[widened] = (*lm)->description().weight_bytes;
      logits[widened] = LogitsOf(**lm);
    }
    EXPECT_TRUE(at::equal(logits[0], logits[1])) << dtype << logits[0] << logits[1];
    EXPECT_LT(bytes[0], bytes[1] * 6 / 10) << dtype;
  }
}

TEST(LoaderTest, BuffersThatCarryNothingAreIgnored) {
  Tensors tensors = TinyTensors("bhyt");
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({2});
  tensors["model.layers.0.c_attn"] = at::ones({});
  const CraftedFolder folder;
  folder.WriteConfig(TinyConfig("bhyt"));
  folder.Write(kWeights, SafetensorsBytes(tensors));
  EXPECT_TRUE(CausalLm::Load(folder.path(), {}).ok());
}

// The BHyT code writes keys that its YAML left out as the string "None".
TEST(LoaderTest, NoneTheStringCountsAsAbsent) {
  json config = TinyConfig("bhyt");
  for (const char* key : {"bhyt_kappa", "bhyt_kappa_schedule", "var_approx_method",
                          "bhyt_layer_range", "fallback_norm_type", "var_approx_exact_layer_list",
                          "var_approx_calibration", "use_gamma_var", "input_layer_lam"}) {
    config[key] = "None";
  }
  const CraftedFolder folder;
  folder.WriteConfig(config);
  folder.Write(kWeights, SafetensorsBytes(TinyTensors("bhyt")));
  const auto lm = CausalLm::Load(folder.path(), {});
  ASSERT_TRUE(lm.ok()) << lm.status();
  EXPECT_FLOAT_EQ((*lm)->norms().layers[0].at(norm::NormSite::attn_in)->op.numbers.gain, 0.3f);
}

TEST(LoaderTest, EosIsTheUnionOfBothConfigs) {
  json config = TinyConfig("rms");
  config["eos_token_id"] = 2;
  const CraftedFolder folder;
  folder.WriteConfig(config);
  folder.Write("generation_config.json", R"({"eos_token_id": [7, 2, 9]})");
  folder.Write(kWeights, SafetensorsBytes(TinyTensors("rms")));
  const auto lm = CausalLm::Load(folder.path(), {});
  ASSERT_TRUE(lm.ok()) << lm.status();
  EXPECT_THAT((*lm)->description().config_eos_token_ids, testing::ElementsAre(2, 7, 9));
}

struct BadIndex {
  const char* name;
  const char* index;
  const char* expected;
};
class BadIndexTest : public testing::TestWithParam<BadIndex> {};

TEST_P(BadIndexTest, IsRefusedByName) {
  const CraftedFolder folder;
  folder.WriteConfig(TinyConfig("rms"));
  folder.Write("a.safetensors", SafetensorsBytes(TinyTensors("rms")));
  folder.Write("b.safetensors", SafetensorsBytes({{"lm_head.weight", at::ones({16, 8})}}));
  folder.Write("model.safetensors.index.json", GetParam().index);
  const auto lm = CausalLm::Load(folder.path(), {});
  ASSERT_FALSE(lm.ok());
  EXPECT_THAT(std::string(lm.status().message()), HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadIndexTest,
    testing::Values(
        BadIndex{"NamesAMissingShard", R"({"weight_map":{"w":"c.safetensors"}})", "c.safetensors"},
        BadIndex{"ShardLacksATensor", R"({"weight_map":{"w":"a.safetensors"}})",
                 "a.safetensors: tensor w is missing"},
        BadIndex{"TensorInTwoShards",
                 R"({"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors"}})",
                 "tensor lm_head.weight is in"},
        BadIndex{"ReachesOutside", R"({"weight_map":{"w":"../a.safetensors"}})",
                 "tensor w no plain file name"},
        BadIndex{"NoMap", R"({"metadata":{}})", "weight_map"},
        BadIndex{"NotJson", "{", "index.json"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(LoaderTest, AFolderWithoutWeightsSaysWhatItLooksFor) {
  const CraftedFolder folder;
  EXPECT_THAT(std::string(CausalLm::Load(folder.path(), {}).status().message()),
              HasSubstr("config.json"));
  folder.WriteConfig(TinyConfig("rms"));
  EXPECT_THAT(std::string(CausalLm::Load(folder.path(), {}).status().message()),
              HasSubstr("model.safetensors.index.json"));
}

}  // namespace
}  // namespace normserve::model
