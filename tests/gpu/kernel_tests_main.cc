// SPDX-License-Identifier: Apache-2.0
// Runs the tests of tests/emu/*_cuda_test.cc, compiled as they are for the emulator, on the kernels that
// they are linked with: nvcc's on a GPU, or the emulated ones. Kernels and tests share plain pointers and
// nothing else. NORMSERVE_SEPARATE_OBJECTS=1: every object in memory of its own, for compute-sanitizer's
// memcheck.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "gpu/device_heap.h"

#if defined(NORMSERVE_GPU)
#include <cuda_runtime_api.h>
#endif

namespace {

#if defined(NORMSERVE_GPU)
// A kernel that did not start, or failed, fails the test that launched it.
class ErrorsAreFailures : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) ADD_FAILURE() << "CUDA: " << cudaGetErrorString(error);
    const cudaError_t last = cudaGetLastError();
    if (last != cudaSuccess) ADD_FAILURE() << "CUDA, of a launch: " << cudaGetErrorString(last);
  }
};
#endif

}  // namespace

int main(int argc, char** argv) {
  using normserve::gpu::HeapMode;
  // The tests read what a kernel wrote as soon as its launch has returned.
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  testing::InitGoogleTest(&argc, argv);
#if defined(NORMSERVE_GPU)
  testing::UnitTest::GetInstance()->listeners().Append(new ErrorsAreFailures);
#endif
  const bool separate = std::getenv("NORMSERVE_SEPARATE_OBJECTS") != nullptr;
  if (const char* why = normserve::gpu::OpenDeviceHeap(separate ? HeapMode::kSeparate : HeapMode::kPooled)) {
    std::fprintf(stderr, "no memory of the device: %s\n", why);
    return 2;
  }
  const int failed = RUN_ALL_TESTS();
  std::fflush(stdout);
  // Destructors of statics would reach for memory that the CUDA library has taken back by then.
  std::_Exit(failed);
}
