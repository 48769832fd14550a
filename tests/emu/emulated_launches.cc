// SPDX-License-Identifier: Apache-2.0
// Lets a test that has opened the plugin of emulated kernels ask how many were launched.
#include <cstdint>

#include "block_scheduler.h"

extern "C" __attribute__((visibility("default"))) uint64_t normserve_emulated_launches() {
  return emu::Current().launches;
}
