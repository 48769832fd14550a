// SPDX-License-Identifier: Apache-2.0
// Memory that host and device both see, in the place of the heap: the tests of the emulated kernels keep
// what a kernel reads and writes in std::vector, and so run on a GPU as they are.
#pragma once

namespace normserve::gpu {

// How memory is taken from the device from now on.
enum class HeapMode {
  kPooled,    // from one large piece: fast
  kSeparate,  // every object by itself: a checker of memory sees where each ends
};

// From here on `new` gives memory of the device; what came before stays the host's. Null, or why there is
// none.
const char* OpenDeviceHeap(HeapMode mode);

}  // namespace normserve::gpu
