// SPDX-License-Identifier: Apache-2.0
// Reading golden folders, and stepping a model by hand.
#include "model/golden_case.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"

namespace normserve::model {
namespace {

constexpr int64_t kBlockSize = 16;

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

at::Tensor Int32(const std::vector<int32_t>& values) {
  return at::tensor(at::ArrayRef<int32_t>(values.data(), values.size()),
                    at::TensorOptions().dtype(at::kInt));
}

}  // namespace

at::Tensor GoldenCase::Array(const std::string& name) const {
  auto tensor = arrays->Tensor(name);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return *tensor;
}

std::vector<std::vector<int32_t>> GoldenCase::Rows() const {
  const at::Tensor ids = Array("input_ids");
  std::vector<std::vector<int32_t>> rows;
  for (int64_t r = 0; r < ids.size(0); ++r) rows.push_back(Int32Row(ids[r]));
  return rows;
}

std::vector<int32_t> Int32Row(const at::Tensor& row) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < row.size(0); ++i) {
    values.push_back(static_cast<int32_t>(row[i].item<int64_t>()));
  }
  return values;
}

std::vector<std::string> GoldenDirectories() {
  std::vector<std::string> found;
  for (const char* root : {"golden", "golden_own"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
      if (std::filesystem::exists(entry.path() / "golden.json")) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

GoldenCase OpenGolden(const std::string& directory, const std::string& checkpoint) {
  GoldenCase golden;
  golden.directory = directory;
  golden.model_directory = directory;
  const nlohmann::json root = ReadJson(directory + "/golden.json");
  const bool several = root.contains("checkpoints");
  const nlohmann::json& described = several ? root["checkpoints"].at(checkpoint) : root;
  const nlohmann::json& generation = described.at("generation");
  golden.bfloat16 = several ? described["export_dtype"] == "bfloat16"
                            : root["weights_dtype"] == "bfloat16";
  golden.prompt = generation["prompt_ids"].get<std::vector<int32_t>>();
  golden.generated = generation["generated_ids"].get<std::vector<int32_t>>();
  golden.logprobs = generation["logprobs"].get<std::vector<double>>();
  golden.margins.assign(golden.generated.size(), 0.0);
  if (generation.contains("top1_minus_top2_logit")) {
    golden.margins = generation["top1_minus_top2_logit"].get<std::vector<double>>();
  }
  const std::string arrays = several ? described["golden"].get<std::string>() : "golden.safetensors";
  auto file = SafetensorsFile::Open(directory + "/" + arrays);
  EXPECT_TRUE(file.ok()) << file.status();
  golden.arrays = std::move(*file);
  return golden;
}

SequenceRunner::SequenceRunner(CausalLm& lm, int64_t sequences, int64_t max_tokens) : lm_(lm) {
  const int64_t per_sequence = (max_tokens + kBlockSize - 1) / kBlockSize;
  const int64_t blocks = sequences * per_sequence;
  cache_ = lm.MakeCache(blocks, kBlockSize);
  // Last block first: a kernel that ignored the table would read another position or sequence.
  block_tables_ = at::arange(blocks - 1, -1, -1, at::TensorOptions().dtype(at::kInt))
                      .reshape({sequences, per_sequence})
                      .contiguous();
  lengths_.assign(static_cast<size_t>(sequences), 0);
}

at::Tensor SequenceRunner::Feed(const std::vector<std::vector<int32_t>>& tokens, Seen* seen) {
  std::vector<int32_t> rows;
  for (const auto& sequence : tokens) {
    for (size_t i = 0; i < sequence.size(); ++i) rows.push_back(static_cast<int32_t>(rows.size()));
  }
  return FeedFor(tokens, rows, seen);
}

// Whether `rows` are 0, 1, 2 and so on for so many tokens.
bool IsEvery(const std::vector<int32_t>& rows, size_t tokens) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<int32_t>(i)) return false;
  }
  return rows.size() == tokens;
}

at::Tensor SequenceRunner::FeedFor(const std::vector<std::vector<int32_t>>& tokens,
                                   const std::vector<int32_t>& logits_rows, Seen* seen) {
  std::vector<int32_t> ids, positions, slots, owners;
  for (size_t s = 0; s < tokens.size(); ++s) {
    for (int32_t id : tokens[s]) {
      const int32_t position = lengths_[s]++;
      const int32_t block =
          block_tables_[static_cast<int64_t>(s)][position / kBlockSize].item<int32_t>();
      ids.push_back(id);
      positions.push_back(position);
      slots.push_back(block * static_cast<int32_t>(kBlockSize) +
                      position % static_cast<int32_t>(kBlockSize));
      owners.push_back(static_cast<int32_t>(s));
    }
  }
  StepInput input{Int32(ids), Int32(positions), Int32(slots), Int32(owners), block_tables_, Int32(logits_rows)};
  input.every_token = IsEvery(logits_rows, ids.size());
  const Probe probe = [&](std::string_view name, const at::Tensor& value) {
    (*seen)[std::string(name)] = value.to(at::kFloat, false, /*copy=*/true);
  };
  const at::Tensor hidden = lm_.Forward(input, cache_, seen != nullptr ? &probe : nullptr);
  at::Tensor logits = at::empty({hidden.size(0), lm_.description().vocab_size}, at::kFloat);
  lm_.Logits(hidden, logits);
  return logits;
}

at::Tensor LogitsInChunks(CausalLm& lm, const std::vector<int32_t>& tokens,
                          const std::vector<size_t>& chunks) {
  SequenceRunner runner(lm, 1, static_cast<int64_t>(tokens.size()));
  std::vector<at::Tensor> parts;
  auto at = tokens.begin();
  for (size_t chunk : chunks) {
    const auto end = at + static_cast<std::ptrdiff_t>(chunk);
    parts.push_back(runner.Feed({std::vector<int32_t>(at, end)}));
    at = end;
  }
  EXPECT_TRUE(at == tokens.end());
  return at::cat(parts, 0);
}

double LogProb(const at::Tensor& row, int64_t index) {
  return at::log_softmax(row.to(at::kDouble), 0)[index].item<double>();
}

double MaxAbsDifference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.numel(), b.numel());
  const at::Tensor d =
      (a.to(at::kDouble).reshape(-1) - b.to(at::kDouble).reshape(-1)).abs();
  return d.numel() == 0 ? 0.0 : d.max().item<double>();
}

}  // namespace normserve::model
