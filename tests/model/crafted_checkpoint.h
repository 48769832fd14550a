// SPDX-License-Identifier: Apache-2.0
// Small checkpoints written by tests: a valid one of every kind, to be bent out of shape.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace normserve::model {

// A folder of its own below the test's temporary directory, removed at the end.
class CraftedFolder {
 public:
  CraftedFolder();
  ~CraftedFolder();
  CraftedFolder(const CraftedFolder&) = delete;
  CraftedFolder& operator=(const CraftedFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& bytes) const;
  void WriteConfig(const nlohmann::json& config) const { Write("config.json", config.dump()); }

 private:
  std::string path_;
};

using Tensors = std::map<std::string, at::Tensor>;

// A safetensors file from a header's text and its data: the length prefix is added.
std::string SafetensorsBytes(const std::string& header, const std::string& data);
// A valid file of these tensors (float32, bfloat16, float16).
std::string SafetensorsBytes(const Tensors& tensors);

// hidden 8, 2 layers, 2 heads of 4, 1 kv head, ffn 12, vocab 16: config and random tensors of a Llama
// with the given norm_type.
nlohmann::json TinyConfig(const std::string& norm_type);
Tensors TinyTensors(const std::string& norm_type);

}  // namespace normserve::model
