// SPDX-License-Identifier: Apache-2.0
// See numa.h. System calls, not libnuma: two of them are all that is needed.
#include "kernels/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace normserve::kernels {
namespace {

constexpr int kMaxNodes = 64;  // one word of a node mask

// The word of nodes to spread over, 0: none.
uint64_t NodesToSpreadOver() {
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != MPOL_DEFAULT) return 0;
  const std::vector<int> nodes = NodesOf("/sys/devices/system/node", AllowedCpus());
  if (nodes.size() < 2) return 0;
  uint64_t word = 0;
  for (const int node : nodes) word |= uint64_t{1} << node;
  return word;
}

}  // namespace

std::vector<int> NodesOf(const std::string& folder, const std::vector<int>& cpus) {
  std::vector<int> nodes;
  std::error_code error;
  for (int node = 0; node < kMaxNodes; ++node) {
    const std::string in_node = folder + "/node" + std::to_string(node) + "/cpu";
    const bool has_one = std::any_of(cpus.begin(), cpus.end(), [&](int cpu) {
      return std::filesystem::exists(in_node + std::to_string(cpu), error);
    });
    if (has_one) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> AllowedCpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void SpreadOverNodes(void* memory, size_t bytes) {
  static const uint64_t nodes = NodesToSpreadOver();
  if (nodes == 0) return;
  syscall(SYS_mbind, memory, bytes, MPOL_INTERLEAVE, &nodes, kMaxNodes + 1, 0);  // a wish
}

}  // namespace normserve::kernels
