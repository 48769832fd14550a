// SPDX-License-Identifier: Apache-2.0
// Memory for what every step streams through: packed weights and the KV cache. It lies in mappings that ask
// the system for large pages, and a page that nobody has written costs nothing.
#pragma once

#include <ATen/core/Tensor.h>

namespace normserve::kernels {

// A contiguous CPU tensor of zeros, 64-byte aligned. Its memory is never used again by another tensor; it
// goes back to the system with the last tensor of its neighbourhood. Throws c10::Error where there is no
// address space. Any thread.
at::Tensor ZerosInLargePages(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace normserve::kernels
