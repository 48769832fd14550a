// SPDX-License-Identifier: Apache-2.0
// Reads the float32 tensors of a trusted safetensors file of this repository. For tests only: it
// checks nothing that a hostile file could get wrong.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace normserve::kernels {

inline std::map<std::string, at::Tensor> ReadGoldenTensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof(size));
  std::string header(size, '\0');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const auto entries = nlohmann::json::parse(header);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__" || entry.at("dtype") != "F32") continue;
    at::Tensor t = at::empty(entry.at("shape").get<std::vector<int64_t>>());
    file.seekg(static_cast<std::streamoff>(8 + size + entry.at("data_offsets")[0].get<uint64_t>()));
    file.read(static_cast<char*>(t.data_ptr()), t.numel() * 4);
    tensors[name] = t;
  }
  return tensors;
}

inline nlohmann::json ReadGoldenJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return nlohmann::json::parse(file);
}

}  // namespace normserve::kernels
