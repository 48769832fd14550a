// SPDX-License-Identifier: Apache-2.0
// Lets a test run on every Highway target that this machine and build have.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/simd_target.h"

namespace normserve::kernels {

// Whether the kernels under test are those of a device other than the CPU.
inline bool AnotherDevice() { return std::getenv("NORMSERVE_TEST_ONE_TARGET") != nullptr; }

// Best first; never empty.
inline std::vector<std::string> SimdTargets() {
  std::vector<std::string> targets;
  for (const char* name :
       {"AVX3_DOT", "AVX3", "AVX2", "SSE4", "SSSE3", "SSE2", "NEON_BF16", "NEON", "NEON_WITHOUT_AES",
        "EMU128", "SCALAR"}) {
    if (LimitSimdTarget(name)) targets.push_back(name);
  }
  EXPECT_FALSE(targets.empty());
  if (AnotherDevice()) targets.resize(1);  // one round is enough
  LimitSimdTarget(targets.front().c_str());
  return targets;
}

// Runs on `target` and goes back to the best one.
class SimdTargetScope {
 public:
  explicit SimdTargetScope(const std::string& target) : best_(SimdTargetName()) {
    EXPECT_TRUE(LimitSimdTarget(target.c_str()));
    EXPECT_EQ(SimdTargetName(), target);
  }
  ~SimdTargetScope() { LimitSimdTarget(best_.c_str()); }
 private:
  std::string best_;
};

}  // namespace normserve::kernels
