// SPDX-License-Identifier: Apache-2.0
// See large_mapping.h.
#include "kernels/large_mapping.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "kernels/numa.h"

namespace normserve::kernels {

#if defined(__SANITIZE_ADDRESS__)
// From the heap, so that the sanitizer sees what runs over the end.
constexpr std::align_val_t kAlign{64};

LargeMapping::LargeMapping(size_t bytes) : bytes_(bytes), begin_(static_cast<char*>(::operator new(bytes, kAlign))) {
  std::memset(begin_, 0, bytes_);
}

LargeMapping::~LargeMapping() { ::operator delete(begin_, kAlign); }
#else
LargeMapping::LargeMapping(size_t bytes) : bytes_(RoundedUpTo(bytes, kLargePage) + kLargePage) {
  map_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) throw std::bad_alloc();
  begin_ = reinterpret_cast<char*>(RoundedUpTo(reinterpret_cast<uintptr_t>(map_), kLargePage));
#ifdef MADV_HUGEPAGE
  madvise(begin_, bytes_ - kLargePage, MADV_HUGEPAGE);  // a wish: without it the pages are small
#endif
  SpreadOverNodes(begin_, bytes_ - kLargePage);
}

LargeMapping::~LargeMapping() { munmap(map_, bytes_); }
#endif

}  // namespace normserve::kernels
