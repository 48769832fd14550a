// SPDX-License-Identifier: Apache-2.0
// Writing small checkpoints.
#include "model/crafted_checkpoint.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace normserve::model {

CraftedFolder::CraftedFolder() {
  std::string pattern = testing::TempDir() + "/normserve_crafted_XXXXXX";
  path_ = mkdtemp(pattern.data()) != nullptr ? pattern : "";
  EXPECT_FALSE(path_.empty());
}

CraftedFolder::~CraftedFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

void CraftedFolder::Write(const std::string& name, const std::string& bytes) const {
  std::ofstream file(path_ + "/" + name, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good()) << name;
}

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i) & 0xff));
  }
  return bytes + header + data;
}

std::string SafetensorsBytes(const Tensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.contiguous();
    const size_t begin = data.size();
    data.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    header[name] = {{"dtype", flat.scalar_type() == at::kFloat      ? "F32"
                              : flat.scalar_type() == at::kBFloat16 ? "BF16"
                                                                    : "F16"},
                    {"shape", flat.sizes().vec()},
                    {"data_offsets", {begin, data.size()}}};
  }
  return SafetensorsBytes(header.dump(), data);
}

nlohmann::json TinyConfig(const std::string& norm_type) {
  nlohmann::json config = {{"model_type", "llama"},
                           {"vocab_size", 16},
                           {"hidden_size", 8},
                           {"intermediate_size", 12},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 2},
                           {"num_key_value_heads", 1},
                           {"max_position_embeddings", 32},
                           {"rms_norm_eps", 1e-5},
                           {"norm_type", norm_type}};
  if (norm_type == "bhyt" || norm_type == "bhytline") {
    config["seq_len"] = 10;
    config["last_layer_lam"] = 0.0;
  }
  return config;
}

Tensors TinyTensors(const std::string& norm_type) {
  at::Generator random = at::detail::createCPUGenerator(7);
  const auto normal = [&](at::IntArrayRef shape) {
    return at::randn(shape, random, at::TensorOptions().dtype(at::kFloat)) * 0.3;
  };
  const auto gamma = [&] { return 1.0 + normal({8}); };
  Tensors t;
  t["model.embed_tokens.weight"] = normal({16, 8});
  t["lm_head.weight"] = normal({16, 8});
  t["model.norm.weight"] = gamma();
  if (norm_type == "dyt") t["model.norm.alpha"] = at::full({1}, 0.8f);
  const std::vector<std::string> norms =
      norm_type == "peri"
          ? std::vector<std::string>{"input_layernorm", "post_attention_layernorm",
                                     "pre_feedforward_layernorm", "post_feedforward_layernorm"}
          : std::vector<std::string>{"input_layernorm", "post_attention_layernorm"};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    t[layer + "self_attn.q_proj.weight"] = normal({8, 8});
    t[layer + "self_attn.k_proj.weight"] = normal({4, 8});
    t[layer + "self_attn.v_proj.weight"] = normal({4, 8});
    t[layer + "self_attn.o_proj.weight"] = normal({8, 8});
    t[layer + "mlp.gate_proj.weight"] = normal({12, 8});
    t[layer + "mlp.up_proj.weight"] = normal({12, 8});
    t[layer + "mlp.down_proj.weight"] = normal({8, 12});
    for (const std::string& norm : norms) {
      t[layer + norm + ".weight"] = gamma();
      if (norm_type.rfind("bhyt", 0) == 0) t[layer + norm + ".lam"] = at::full({1}, 3.0f);
      if (norm_type == "dyt") t[layer + norm + ".alpha"] = at::full({1}, 0.5f);
    }
  }
  return t;
}

}  // namespace normserve::model
