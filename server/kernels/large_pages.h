// SPDX-License-Identifier: Apache-2.0
// Tensors in large pages: packed weights and the KV cache, which every step streams through, and the buffers that
// every step writes.
#pragma once

#include <ATen/core/Tensor.h>

namespace normserve::kernels {

// A contiguous CPU tensor of zeros, 64-byte aligned. Its memory is never used again by another tensor; it
// goes back to the system with the last tensor of its neighbourhood. Throws c10::Error where there is no
// address space. Any thread.
at::Tensor ZerosInLargePages(at::IntArrayRef sizes, at::ScalarType dtype);

// The same in a mapping of its own, which goes back with it.
at::Tensor ZerosInOwnLargePages(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace normserve::kernels
