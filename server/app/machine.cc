// SPDX-License-Identifier: Apache-2.0
#include "app/machine.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normserve::app {
namespace {

std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // absent, or "max"
}

// The value of "KEY:   N kB" in one of the kernel's tables, in bytes.
std::optional<uint64_t> KibibytesIn(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key + ":", 0) != 0) continue;
    return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return std::nullopt;
}

}  // namespace

uint64_t FreeMemoryBytes() {
  const std::optional<uint64_t> available = KibibytesIn("/proc/meminfo", "MemAvailable");
  const std::optional<uint64_t> limit = NumberIn("/sys/fs/cgroup/memory.max");
  const std::optional<uint64_t> used = NumberIn("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return available.value_or(0);
  const uint64_t left = *limit > *used ? *limit - *used : 0;
  return std::min(left, available.value_or(left));
}

ResidentBytes ReadResidentBytes() {
  const std::string status = "/proc/self/status";
  return {KibibytesIn(status, "VmRSS").value_or(0), KibibytesIn(status, "VmHWM").value_or(0)};
}

std::vector<int> CpusToPin(const std::string& folder, const std::vector<int>& allowed) {
  std::map<std::string, int> taken;            // by core
  std::vector<std::pair<int, int>> by_rank;  // threads of its core before it, CPU
  for (const int cpu : allowed) {
    const std::string topology = absl::StrCat(folder, "/cpu", cpu, "/topology/");
    const std::optional<uint64_t> package = NumberIn(topology + "physical_package_id");
    const std::optional<uint64_t> core = NumberIn(topology + "core_id");
    const std::string key = package && core ? absl::StrCat(*package, "/", *core) : absl::StrCat("cpu", cpu);
    by_rank.emplace_back(taken[key]++, cpu);
  }
  std::sort(by_rank.begin(), by_rank.end());
  std::vector<int> cpus;
  for (const auto& [rank, cpu] : by_rank) cpus.push_back(cpu);
  return cpus;
}

void GiveBackFreedMemory() {
#ifdef M_MMAP_THRESHOLD
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

int UsableCores() {
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "QUOTA PERIOD", QUOTA may be "max"
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota / period))));
  }
  return cores;
}

}  // namespace normserve::app
