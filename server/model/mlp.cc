// SPDX-License-Identifier: Apache-2.0
// One or two calls of kernels.
#include "model/mlp.h"

#include <ATen/core/Tensor.h>

namespace normserve::model {

void Mlp::Run(const LayerStep& step, Stream& s, const at::Tensor& x) const {
  if (parts_.gate_in_one) {
    return kernels::LinearGate(x, parts_.gate_up.weight, parts_.gate_up.bias, s.gate_up, s.activated);
  }
  kernels::Linear(x, parts_.gate_up.weight, parts_.gate_up.bias, s.gate_up);
  if (step.probe != nullptr) {
    const int64_t ffn = s.activated.size(1);
    step.SeeNorm("gate", s.gate_up.narrow(1, 0, ffn), parts_.gate);
    if (parts_.up) step.SeeNorm("up", s.gate_up.narrow(1, ffn, ffn), parts_.up);
  }
  kernels::Activate(s.gate_up, parts_.activation, parts_.gate, parts_.up, s.activated);
}

}  // namespace normserve::model
