// SPDX-License-Identifier: Apache-2.0
// What this process may use of its machine, a container's limits included.
#pragma once

#include <cstdint>

namespace normserve::app {

// Memory that may still be taken: /proc/meminfo's MemAvailable, or less where a control group
// allows less. 0 when neither can be read.
uint64_t FreeMemoryBytes();

// What the process holds in memory now, and the most that it ever held; 0 where it cannot be read.
struct ResidentBytes {
  uint64_t now = 0;
  uint64_t peak = 0;
};
ResidentBytes ReadResidentBytes();

// Cores, at least 1: the affinity mask's, or less where a control group has a CPU quota.
int UsableCores();

}  // namespace normserve::app
