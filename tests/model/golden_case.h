// SPDX-License-Identifier: Apache-2.0
// One folder of golden data, and running a model over its sequences by hand: no scheduler, no engine.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/causal_lm.h"
#include "model/safetensors.h"

namespace normserve::model {

struct GoldenCase {
  std::string directory;
  std::string model_directory;  // where config.json and model.safetensors lie
  bool bfloat16 = false;        // computed in bfloat16 by the reference
  std::vector<int32_t> prompt;
  std::vector<int32_t> generated;
  std::vector<double> logprobs;
  std::vector<double> margins;
  std::unique_ptr<SafetensorsFile> arrays;  // keeps what `array` returned

  bool Has(const std::string& name) const { return arrays->entries().count(name) > 0; }
  at::Tensor Array(const std::string& name) const;
  // `input_ids` as rows.
  std::vector<std::vector<int32_t>> Rows() const;
};

// Every folder of golden/ and golden_own/ that has a golden.json, sorted.
std::vector<std::string> GoldenDirectories();
// Opens one; simplegpt_dcp describes several checkpoints, `checkpoint` picks one of them.
GoldenCase OpenGolden(const std::string& directory, const std::string& checkpoint = "full_2rank");

std::vector<int32_t> Int32Row(const at::Tensor& row);

// What a probe saw, copied, by name.
using Seen = std::map<std::string, at::Tensor>;

// Sequences of one model with a paged cache whose blocks are handed out in a scrambled order.
class SequenceRunner {
 public:
  SequenceRunner(CausalLm& lm, int64_t sequences, int64_t max_tokens);
  // Appends tokens to each sequence in one step (an empty list leaves it out), and returns the logits
  // of every token, [tokens, vocab] float32, sequence after sequence.
  at::Tensor Feed(const std::vector<std::vector<int32_t>>& tokens, Seen* seen = nullptr);
  // The same, logits of the given tokens of the step alone.
  at::Tensor FeedFor(const std::vector<std::vector<int32_t>>& tokens,
                     const std::vector<int32_t>& logits_rows, Seen* seen = nullptr);

 private:
  CausalLm& lm_;
  KvCache cache_;
  at::Tensor block_tables_;
  std::vector<int32_t> lengths_;
};

// Logits [tokens, vocab] of one sequence that is fed in chunks of the given sizes.
at::Tensor LogitsInChunks(CausalLm& lm, const std::vector<int32_t>& tokens,
                          const std::vector<size_t>& chunks);

// log softmax of one row at an index, in double.
double LogProb(const at::Tensor& row, int64_t index);

double MaxAbsDifference(const at::Tensor& a, const at::Tensor& b);

}  // namespace normserve::model
