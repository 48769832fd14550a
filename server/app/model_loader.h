// SPDX-License-Identifier: Apache-2.0
// From a --model flag to what main composes: tokenizer, model, runner, request defaults, card.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "app/options.h"
#include "engine/model_runner.h"
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

// Errors are one sentence that begins with the model's name.
absl::StatusOr<Checkpoint> LoadCheckpoint(const NamedModel& named, const Options& options);

// What runs it, KV cache included and warmed up; fills the card's cache sizes. Takes
// checkpoint->model. `promised_bytes` is the size of other models' caches: free memory that is theirs,
// since a cache takes memory only when it is used.
absl::StatusOr<std::unique_ptr<engine::ModelRunner>> MakeRunner(const Options& options,
                                                                uint64_t promised_bytes,
                                                                Checkpoint* checkpoint);

// Brings in the kernels of --device; an error where this build or machine has none. First thing in main.
absl::Status OpenDevice(const Options& options);

}  // namespace normserve::app
