// SPDX-License-Identifier: Apache-2.0
// A TensorSource in memory, that remembers what was asked for.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "norm/norm_inputs.h"

namespace normserve::norm {

class FakeTensors : public TensorSource {
 public:
  std::map<std::string, at::Tensor> tensors;
  std::set<std::string> read;
  int linear_looks = 0;

  bool Has(const std::string& name) const override { return tensors.count(name) > 0; }
  absl::StatusOr<at::Tensor> Parameter(const std::string& name,
                                       const std::vector<int64_t>& shape) override {
    read.insert(name);
    const auto it = tensors.find(name);
    if (it == tensors.end()) return absl::NotFoundError(absl::StrCat(name, " is missing"));
    if (it->second.sizes() != at::IntArrayRef(shape)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has another shape"));
    }
    return it->second.to(at::kFloat);
  }
  absl::StatusOr<float> Scalar(const std::string& name) override {
    read.insert(name);
    const auto it = tensors.find(name);
    if (it == tensors.end()) return absl::NotFoundError(absl::StrCat(name, " is missing"));
    return it->second.item<float>();
  }
  absl::StatusOr<at::Tensor> LinearWeight(const std::string& name, int64_t rows,
                                          int64_t columns) override {
    ++linear_looks;
    const auto it = tensors.find(name);
    if (it == tensors.end()) return absl::NotFoundError(absl::StrCat(name, " is missing"));
    EXPECT_EQ(it->second.size(0), rows);
    EXPECT_EQ(it->second.size(1), columns);
    return it->second;
  }
};

// Two layers of a Llama, hidden 6, 2 heads of 4, 1 kv head; gammas 1 + 0.1 i, lam 2 and 3.
inline NormInputs LlamaInputs(FakeTensors& source, const std::string& norm_type) {
  NormInputs in;
  in.norm_type = norm_type;
  in.config_file = "config.json";
  in.layers = 2;
  in.hidden = 6;
  in.heads = 2;
  in.kv_heads = 1;
  in.head_dim = 4;
  in.ffn = 10;
  in.eps = 1e-5;
  in.layer_prefix = "l.{}.";
  in.names.layer[static_cast<size_t>(NormSite::attn_in)] = "in";
  in.names.layer[static_cast<size_t>(NormSite::mlp_in)] = "post";
  in.names.final = "final";
  in.value_weight = "v";
  in.output_weight = "o";
  in.bhyt.seq_len = 5;
  in.bhyt.last_layer_lam = 0.0;
  in.tensors = &source;
  const at::Tensor gamma = 1.0 + at::arange(6, at::kFloat) * 0.1;
  for (const std::string layer : {"l.0.", "l.1."}) {
    source.tensors[layer + "in.weight"] = gamma;
    source.tensors[layer + "post.weight"] = gamma * 2;
    source.tensors[layer + "in.lam"] = at::full({1}, 2.0f);
    source.tensors[layer + "post.lam"] = at::full({}, 3.0f);
    source.tensors[layer + "v"] = at::arange(24, at::kFloat).reshape({4, 6}) * 0.01;
    source.tensors[layer + "o"] = at::arange(48, at::kFloat).reshape({6, 8}) * 0.02 - 0.3;
  }
  source.tensors["final.weight"] = gamma;
  return in;
}

}  // namespace normserve::norm
