// SPDX-License-Identifier: Apache-2.0
// The launch of the sampling kernel: one block for each row, whatever the row asks for.
#include "kernels/sample.cuh"

#include "kernels/cuda_rows.h"

namespace normserve::kernels {

static_assert(sizeof(SampleShared) <= 48 * 1024, "what a launch may have without asking");

void SampleRowsCuda(const SampleArgs& args, int64_t rows, CudaStream stream) {
  if (rows == 0) return;
  launch(SampleKernel, dim3(static_cast<unsigned>(rows)), dim3(kSelectThreads), sizeof(SampleShared),
         stream, args);
}

}  // namespace normserve::kernels
