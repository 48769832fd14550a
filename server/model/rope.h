// SPDX-License-Identifier: Apache-2.0
// Tables of rotary position embeddings, computed in float32 step by step as transformers 4.51.3 does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/config.h"

namespace normserve::model {

struct RopeFrequencies {
  at::Tensor inverse;             // [head_dim / 2] float32
  double attention_factor = 1.0;  // multiplies cosines and sines (yarn)
};
RopeFrequencies MakeRopeFrequencies(const RopeConfig& rope, int64_t head_dim,
                                    int64_t max_positions);

// [max_positions, head_dim] float32: head_dim/2 cosines, then head_dim/2 sines. Undefined for kNone.
at::Tensor MakeRopeTable(const RopeConfig& rope, int64_t head_dim, int64_t max_positions);

}  // namespace normserve::model
