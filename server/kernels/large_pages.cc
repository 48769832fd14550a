// SPDX-License-Identifier: Apache-2.0
// See large_pages.h.
#include "kernels/large_pages.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "kernels/large_mapping.h"

namespace normserve::kernels {
namespace {

constexpr size_t kAlign = 64;
// Of one mapping: many tensors share a large page, since most weights of a small model are smaller than one.
constexpr size_t kMappingBytes = size_t{64} << 20;

// The mapping that is being filled. A tensor keeps its mapping alive.
struct Filling {
  std::mutex mutex;
  std::shared_ptr<LargeMapping> mapping;
  size_t used = 0, capacity = 0;
};

size_t BytesOf(at::IntArrayRef sizes, at::ScalarType dtype) {
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  return RoundedUpTo(bytes, kAlign);
}

std::shared_ptr<LargeMapping> Map(size_t bytes) {
  try {
    return std::make_shared<LargeMapping>(bytes);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(false, "no memory for ", bytes, " bytes");
  }
}

at::Tensor TensorAt(char* data, at::IntArrayRef sizes, at::ScalarType dtype,
                    std::shared_ptr<LargeMapping> mapping) {
  return at::from_blob(data, sizes, [keep = std::move(mapping)](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace

at::Tensor ZerosInOwnLargePages(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::shared_ptr<LargeMapping> mapping = Map(std::max<size_t>(BytesOf(sizes, dtype), 1));
  char* data = mapping->begin();
  return TensorAt(data, sizes, dtype, std::move(mapping));
}

at::Tensor ZerosInLargePages(at::IntArrayRef sizes, at::ScalarType dtype) {
#if defined(__SANITIZE_ADDRESS__)
  return ZerosInOwnLargePages(sizes, dtype);  // so that the sanitizer sees what runs over a tensor's end
#else
  const size_t bytes = BytesOf(sizes, dtype);
  static Filling filling;
  const std::lock_guard<std::mutex> lock(filling.mutex);
  if (filling.capacity - filling.used < bytes) {
    const size_t capacity = RoundedUpTo(std::max(bytes, kMappingBytes), kLargePage);
    filling.mapping = Map(capacity);
    filling.used = 0;
    filling.capacity = capacity;
  }
  char* data = filling.mapping->begin() + filling.used;
  filling.used += bytes;
  return TensorAt(data, sizes, dtype, filling.mapping);
#endif
}

}  // namespace normserve::kernels
