// SPDX-License-Identifier: Apache-2.0
// From a --model flag to what main composes: tokenizer, model, runner, request defaults, card.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "app/device.h"
#include "app/options.h"
#include "engine/runner.h"
#include "model/causal_lm.h"
#include "rpc/served_model.h"
#include "text/tokenizer.h"

namespace normserve::app {

// A checkpoint folder read and checked; nothing allocated beyond its weights.
struct Checkpoint {
  std::unique_ptr<text::Tokenizer> tokenizer;  // may be null
  std::unique_ptr<model::CausalLm> model;
  rpc::GenerationDefaults defaults;
  rpc::ModelCard card;  // without the KV cache's size
};

// How many of a model's layers are there.
using LoadProgress = std::function<void(int64_t layers, int64_t layer_count)>;

// Errors are one sentence that begins with the model's name. `progress` may be empty.
absl::StatusOr<Checkpoint> LoadCheckpoint(const NamedModel& named, const Options& options,
                                          const Device& device, const LoadProgress& progress);

// Of the models that share a machine: what those before this one will still take, and how many are to come.
struct Neighbours {
  // Size of other models' caches in main memory: free memory that is theirs, since a cache takes memory only when
  // it is used.
  uint64_t promised_bytes = 0;
  size_t to_come = 0;
};

// What runs it, KV cache included and warmed up; fills the card's cache sizes. Takes checkpoint->model. The
// device outlives the result.
absl::StatusOr<std::unique_ptr<engine::Runner>> MakeRunner(const Options& options, const Device& device,
                                                           const Neighbours& neighbours,
                                                           Checkpoint* checkpoint);

}  // namespace normserve::app
