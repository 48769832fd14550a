// SPDX-License-Identifier: Apache-2.0
// What this process may use of its machine, a container's limits included.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// CPUs that the process may run on, in the order in which threads take them for themselves: one of every core first, then
// their siblings. `folder` is /sys/devices/system/cpu; a CPU of which it says nothing is a core of its own.
std::vector<int> CpusToPin(const std::string& folder, const std::vector<int>& allowed);

// Large blocks of memory go back to the system as soon as they are freed. Without it glibc keeps, after the first of them,
// all of up to 32 MiB: loading 1 GiB of weights, tensor by tensor, was seen to leave 1 GiB behind. Call before threads start.
void GiveBackFreedMemory();

// Cores, at least 1: the affinity mask's, or less where a control group has a CPU quota.
int UsableCores();

}  // namespace normserve::app
