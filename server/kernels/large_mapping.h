// SPDX-License-Identifier: Apache-2.0
// Memory that asks the system for large pages: it is searched faster, and what is used again and again does not
// collide with itself in the second-level cache, as scattered small pages do. On a machine of several nodes it lies over
// all of them (numa.h). No torch.
#pragma once

#include <cstddef>

namespace normserve::kernels {

inline constexpr size_t kLargePage = size_t{2} << 20;

constexpr size_t RoundedUpTo(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// One mapping of zeros, which begins at a large page's boundary. A page that nobody has written costs nothing.
class LargeMapping {
 public:
  // Throws std::bad_alloc where there is no address space.
  explicit LargeMapping(size_t bytes);
  ~LargeMapping();
  LargeMapping(const LargeMapping&) = delete;
  LargeMapping& operator=(const LargeMapping&) = delete;

  char* begin() const { return begin_; }

 private:
  void* map_ = nullptr;
  size_t bytes_ = 0;  // of the whole mapping
  char* begin_ = nullptr;
};

}  // namespace normserve::kernels
