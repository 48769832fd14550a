// SPDX-License-Identifier: Apache-2.0
// What the CUDA glue of packing and of using a weight share.
#pragma once

#include <cstdint>

#include "kernels/weight_format.h"

namespace normserve::kernels {

// A TORCH_CHECK failure for a format that has no CUDA kernel.
WeightFormat CheckCudaFormat(int64_t format);

}  // namespace normserve::kernels
