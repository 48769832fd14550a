// SPDX-License-Identifier: Apache-2.0
// See large_pages.h.
#include "kernels/large_pages.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace normserve::kernels {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kAlign = 64;
// Of one mapping: many tensors share a large page, since most weights of a small model are smaller than one.
constexpr size_t kMappingBytes = size_t{64} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// One mapping, which begins at a large page's boundary.
class Mapping {
 public:
  explicit Mapping(size_t bytes) : bytes_(bytes + kLargePage) {
    map_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(map_ != MAP_FAILED, "no memory for ", bytes, " bytes");
    begin_ = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(map_), kLargePage));
#ifdef MADV_HUGEPAGE
    madvise(begin_, bytes, MADV_HUGEPAGE);  // a wish: without it the pages are small
#endif
  }
  ~Mapping() { munmap(map_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* begin() const { return begin_; }

 private:
  void* map_ = nullptr;
  size_t bytes_ = 0;
  char* begin_ = nullptr;
};

// The mapping that is being filled. A tensor keeps its mapping alive.
struct Filling {
  std::mutex mutex;
  std::shared_ptr<Mapping> mapping;
  size_t used = 0, capacity = 0;
};

}  // namespace

at::Tensor ZerosInLargePages(at::IntArrayRef sizes, at::ScalarType dtype) {
#if defined(__SANITIZE_ADDRESS__)
  // Every tensor on its own, so that the sanitizer sees what runs over its end.
  return at::zeros(sizes, at::TensorOptions().dtype(dtype));
#else
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  bytes = RoundUp(bytes, kAlign);
  static Filling filling;
  const std::lock_guard<std::mutex> lock(filling.mutex);
  if (filling.capacity - filling.used < bytes) {
    const size_t capacity = RoundUp(std::max(bytes, kMappingBytes), kLargePage);
    filling.mapping = std::make_shared<Mapping>(capacity);
    filling.used = 0;
    filling.capacity = capacity;
  }
  char* data = filling.mapping->begin() + filling.used;
  filling.used += bytes;
  return at::from_blob(
      data, sizes, [keep = filling.mapping](void*) {}, at::TensorOptions().dtype(dtype));
#endif
}

}  // namespace normserve::kernels
