// SPDX-License-Identifier: Apache-2.0
// Memory of machines whose processors have memory of their own each (NUMA nodes).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace normserve::kernels {

// The nodes below `folder` (/sys/devices/system/node) that have one of these CPUs, ascending.
std::vector<int> NodesOf(const std::string& folder, const std::vector<int>& cpus);

// CPUs that the calling thread may run on, ascending; empty where the system does not say.
std::vector<int> AllowedCpus();

// Spreads pages that nobody has written yet over the nodes of AllowedCpus, so that threads on all of them read with the
// bandwidth of all. Does nothing on a machine with one node, or where the process was started with a memory policy of
// its own (numactl); without the system's permission (Docker's default profile) pages lie where they are first written.
void SpreadOverNodes(void* memory, size_t bytes);

}  // namespace normserve::kernels
