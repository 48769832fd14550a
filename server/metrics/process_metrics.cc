// SPDX-License-Identifier: Apache-2.0
#include "metrics/process_metrics.h"

#include <dirent.h>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace normserve::metrics {
namespace {

// Fields of /proc/self/stat, counted from 3 ("state") as the manual does; the name in field 2 may
// hold spaces, so counting starts after its bracket.
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t bracket = line.rfind(')');
  if (bracket == std::string::npos) return {};
  std::istringstream rest(line.substr(bracket + 1));
  std::vector<std::string> fields = {"", "", ""};
  std::string field;
  while (rest >> field) fields.push_back(field);
  return fields;
}

// Seconds since 1970 at which the machine started.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("btime ", 0) == 0) return std::strtod(line.c_str() + 6, nullptr);
  }
  return std::nullopt;
}

std::optional<double> OpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return std::nullopt;
  int count = -1;  // the directory's own
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(directory);
  return count;
}

void Add(const char* name, const char* help, prometheus::MetricType type, double value,
         std::vector<prometheus::MetricFamily>* out) {
  prometheus::ClientMetric metric;
  metric.gauge.value = value;
  metric.counter.value = value;
  out->push_back({name, help, type, {metric}});
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  std::vector<prometheus::MetricFamily> out;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::vector<std::string> stat = StatFields();
  const auto field = [&](size_t number) { return std::strtod(stat[number].c_str(), nullptr); };
  if (stat.size() > 24) {
    Add("process_cpu_seconds_total", "User and system CPU time.", prometheus::MetricType::Counter,
        (field(14) + field(15)) / ticks, &out);
    Add("process_threads", "Threads.", kGauge, field(20), &out);
    Add("process_virtual_memory_bytes", "Virtual memory.", kGauge, field(23), &out);
    Add("process_resident_memory_bytes", "Resident memory.", kGauge,
        field(24) * static_cast<double>(sysconf(_SC_PAGESIZE)), &out);
    if (const std::optional<double> boot = BootTime()) {
      Add("process_start_time_seconds", "Start of the process, seconds since 1970.", kGauge,
          *boot + field(22) / ticks, &out);
    }
  }
  if (const std::optional<double> files = OpenFiles()) {
    Add("process_open_fds", "Open file descriptors.", kGauge, *files, &out);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add("process_max_fds", "Most file descriptors that may be open.", kGauge,
        static_cast<double>(limit.rlim_cur), &out);
  }
  return out;
}

}  // namespace normserve::metrics
