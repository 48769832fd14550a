// SPDX-License-Identifier: Apache-2.0
// When an open loop means to send each request. The times depend on rate, kind and seed alone,
// never on how the server or the client keeps up: that is what makes the loop open.
#pragma once

#include <cstdint>
#include <random>

namespace normserve::client {

enum class ArrivalKind { kConstant, kPoisson };

// One thread.
class Arrivals {
 public:
  // rate_per_s > 0.
  Arrivals(ArrivalKind kind, double rate_per_s, uint64_t seed);

  // Offset of the next request from the start of the run, never decreasing.
  int64_t next_ns() const { return next_ns_; }
  void Advance();

 private:
  ArrivalKind kind_;
  double rate_per_s_;
  uint64_t index_ = 0;
  double elapsed_s_ = 0;
  int64_t next_ns_ = 0;
  std::mt19937_64 random_;
};

}  // namespace normserve::client
