// SPDX-License-Identifier: Apache-2.0
// See device_heap.h. A header before each object says where it came from.
#include "gpu/device_heap.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#if defined(NORMSERVE_GPU)
#include <cuda_runtime_api.h>
#endif

namespace normserve::gpu {
namespace {

constexpr size_t kPoolBytes = size_t{2} << 30;

enum class Source : uint32_t { kHost, kPool, kDevice };
struct alignas(16) Header {
  Source source;
  uint32_t size_class;
  Header* next_free;
};

#if defined(NORMSERVE_GPU)
const char* last_error = nullptr;
void* Shared(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
  last_error = cudaGetErrorString(error);
  return error == cudaSuccess ? memory : nullptr;
}
void Unshare(void* memory) { cudaFree(memory); }
#else
// With the emulated kernels the device sees what the host does.
const char* last_error = "no memory";
void* Shared(size_t bytes) { return std::malloc(bytes); }
void Unshare(void* memory) { std::free(memory); }
#endif

// Constant-initialised: objects are made before any constructor of a static would run.
struct Heap {
  bool open = false;
  HeapMode mode = HeapMode::kPooled;
  char* pool = nullptr;
  size_t used = 0;
  Header* free[64] = {};
  std::mutex mutex;
};
Heap heap;

uint32_t SizeClass(size_t bytes) {
  uint32_t size_class = 6;
  while ((size_t{1} << size_class) < bytes) ++size_class;
  return size_class;
}

Header* FromPool(size_t bytes) {
  const uint32_t size_class = SizeClass(bytes);
  const std::lock_guard<std::mutex> lock(heap.mutex);
  Header* header = heap.free[size_class];
  if (header != nullptr) {
    heap.free[size_class] = header->next_free;
    return header;
  }
  const size_t rounded = size_t{1} << size_class;
  if (rounded > kPoolBytes - heap.used) return nullptr;
  header = reinterpret_cast<Header*>(heap.pool + heap.used);
  heap.used += rounded;
  header->source = Source::kPool;
  header->size_class = size_class;
  return header;
}

Header* From(Source source, void* memory) {
  Header* header = static_cast<Header*>(memory);
  if (header != nullptr) header->source = source;
  return header;
}

void* Take(size_t bytes) {
  bytes += sizeof(Header);
  Header* header = !heap.open                           ? From(Source::kHost, std::malloc(bytes))
                   : heap.mode == HeapMode::kSeparate ? From(Source::kDevice, Shared(bytes))
                                                        : FromPool(bytes);
  if (header == nullptr) throw std::bad_alloc();
  return header + 1;
}

void Give(void* object) {
  if (object == nullptr) return;
  Header* header = static_cast<Header*>(object) - 1;
  if (header->source == Source::kHost) return std::free(header);
  if (header->source == Source::kDevice) return Unshare(header);
  const std::lock_guard<std::mutex> lock(heap.mutex);
  header->next_free = heap.free[header->size_class];
  heap.free[header->size_class] = header;
}

}  // namespace

const char* OpenDeviceHeap(HeapMode mode) {
  if (mode == HeapMode::kPooled) {
    heap.pool = static_cast<char*>(Shared(kPoolBytes));
    if (heap.pool == nullptr) return last_error;
  }
  heap.mode = mode;
  heap.open = true;
  return nullptr;
}

}  // namespace normserve::gpu

void* operator new(size_t bytes) { return normserve::gpu::Take(bytes); }
void* operator new[](size_t bytes) { return normserve::gpu::Take(bytes); }
void operator delete(void* object) noexcept { normserve::gpu::Give(object); }
void operator delete[](void* object) noexcept { normserve::gpu::Give(object); }
void operator delete(void* object, size_t) noexcept { normserve::gpu::Give(object); }
void operator delete[](void* object, size_t) noexcept { normserve::gpu::Give(object); }
