// SPDX-License-Identifier: Apache-2.0
// From a checkpoint folder to the parts of a CausalLm. Everything is checked here, once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/causal_lm.h"
#include "model/decoder_layer.h"

namespace normserve::model {

struct LoadedModel {
  ModelDescription description;
  norm::NormPlan plan;
  ScratchShape scratch;
  at::ScalarType cache_dtype = at::kFloat;
  kernels::PackedWeight embedding;
  float embedding_scale = 1.0f;
  kernels::OptionalNorm embed_out, final;  // of the plan, on the model's device
  at::Tensor positions;  // [positions, hidden] float32, or undefined
  at::Tensor cos_sin;    // [positions, head_dim] float32, or undefined
  std::vector<DecoderLayer> layers;
  PackedLinear head;     // shares the embedding's panels where tied
};

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options);

}  // namespace normserve::model
