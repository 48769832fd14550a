// SPDX-License-Identifier: Apache-2.0
// The feed-forward block of one layer: fused gate and up projection, activation with the norms that
// stand there; it holds the down projection.
#pragma once

#include "model/layer_step.h"

namespace normserve::model {

// Used by one thread; immutable after loading.
class Mlp {
 public:
  struct Parts {
    PackedLinear gate_up;
    PackedLinear out;
    kernels::OptionalNorm gate;
    kernels::OptionalNorm up;
    bool gate_in_one = false;  // gate_up is packed for LinearGate: nothing stands between it and the gate
    kernels::Activation activation = kernels::Activation::kSiluGate;
  };
  explicit Mlp(Parts parts) : parts_(std::move(parts)) {}

  // s.activated = MLP(x) up to the down projection, which the layer makes together with the residual addition.
  // x [rows, hidden].
  void Run(const LayerStep& step, Stream& s, const at::Tensor& x) const;
  const PackedLinear& out() const { return parts_.out; }

 private:
  Parts parts_;
};

}  // namespace normserve::model
