// SPDX-License-Identifier: Apache-2.0
// The CUDA plugin opens, or says in one sentence what this machine lacks; the server can then go on with the CPU.
#include <gtest/gtest.h>

#include <string>

#include "kernels/kernel_plugin.h"

namespace normserve::kernels {
namespace {

TEST(CudaPlugin, OpensOrSaysInOneSentenceWhatIsMissing) {
  const auto opened = OpenKernelPlugin("normserve_cuda.so", 0);
  if (opened.ok()) return;
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
  const std::string message(opened.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  // A symbol that is not there is a fault of the build, not of the machine.
  EXPECT_EQ(message.find("undefined symbol"), std::string::npos) << message;
  EXPECT_TRUE(message.find("cannot open shared object file") != std::string::npos ||
              message.find("no NVIDIA GPU was found") == 0)
      << message;
}

}  // namespace
}  // namespace normserve::kernels
