// SPDX-License-Identifier: Apache-2.0
// See arrivals.h.
#include "client/arrivals.h"

#include <cmath>

namespace normserve::client {

Arrivals::Arrivals(ArrivalKind kind, double rate_per_s, uint64_t seed)
    : kind_(kind), rate_per_s_(rate_per_s), random_(seed) {}

void Arrivals::Advance() {
  ++index_;
  if (kind_ == ArrivalKind::kConstant) {
    // From the index, so that rounding does not add up over a long run.
    elapsed_s_ = static_cast<double>(index_) / rate_per_s_;
  } else {
    // Uniform in (0, 1] by hand: the standard distributions differ between libraries.
    const double uniform = (static_cast<double>(random_() >> 11) + 1.0) * 0x1p-53;
    elapsed_s_ += -std::log(uniform) / rate_per_s_;
  }
  next_ns_ = static_cast<int64_t>(elapsed_s_ * 1e9);
}

}  // namespace normserve::client
