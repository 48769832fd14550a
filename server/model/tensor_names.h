// SPDX-License-Identifier: Apache-2.0
// What each architecture's checkpoint calls its tensors. Module names, without ".weight" or ".bias".
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "norm/norm_inputs.h"

namespace normserve::model {

struct TensorNames {
  std::string embedding;
  std::string positions;     // learned positions; empty where rotary
  std::string head;          // of an untied head, and of a redundant tied one
  std::string shared_scale;  // whole tensor name
  std::string layer_prefix;  // "model.layers.{}."
  std::vector<std::string> qkv;      // q, k, v below the prefix; one name where the file fuses them
  std::string attn_out;
  std::vector<std::string> gate_up;  // gate, up; one name where there is no gate
  std::string mlp_out;
  norm::SiteNames norms;
  std::vector<std::string> ignored_suffixes;  // tensors that carry nothing a forward pass needs
};

// `norm_type` matters for Peri-LN alone, whose layers have four norms.
TensorNames NamesOf(Architecture architecture, const std::string& norm_type);

norm::Family FamilyOf(Architecture architecture);

}  // namespace normserve::model
