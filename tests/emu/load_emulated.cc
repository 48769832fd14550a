// SPDX-License-Identifier: Apache-2.0
// Linked into a test of the kernels or models, puts the emulated CUDA kernels in the place of the CPU's, so that
// the same test runs on them.
#include <gtest/gtest.h>

#include "kernels/kernel_plugin.h"

namespace {

class EmulatedKernels : public testing::Environment {
 public:
  void SetUp() override {
    const auto opened = normserve::kernels::OpenKernelPlugin("normserve_cuda_emulated.so", 0);
    ASSERT_TRUE(opened.ok()) << opened.status();
  }
};

const testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(new EmulatedKernels);

}  // namespace
