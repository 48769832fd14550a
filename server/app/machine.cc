// SPDX-License-Identifier: Apache-2.0
#include "app/machine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

namespace normserve::app {
namespace {

std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // absent, or "max"
}

std::optional<uint64_t> MemAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("MemAvailable:", 0) != 0) continue;
    return std::strtoull(line.c_str() + sizeof("MemAvailable:") - 1, nullptr, 10) * 1024;
  }
  return std::nullopt;
}

}  // namespace

uint64_t FreeMemoryBytes() {
  const std::optional<uint64_t> available = MemAvailable();
  const std::optional<uint64_t> limit = NumberIn("/sys/fs/cgroup/memory.max");
  const std::optional<uint64_t> used = NumberIn("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return available.value_or(0);
  const uint64_t left = *limit > *used ? *limit - *used : 0;
  return std::min(left, available.value_or(left));
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
