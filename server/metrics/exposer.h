// SPDX-License-Identifier: Apache-2.0
// The HTTP endpoint that Prometheus scrapes: /metrics on --metrics-listen.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace normserve::metrics {

// Owns its own threads. Created and destroyed by main.
class Exposer {
 public:
  // `listen` is HOST:PORT; HOST may be a name, an IPv4 address or a bracketed IPv6 one; port 0
  // picks a free one. What `sources` and the process itself say is served. An error names the flag and the reason.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(
      const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> sources);
  ~Exposer();

  int port() const;

 private:
  struct Impl;
  explicit Exposer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// normserve_build_info{version="...", git_commit="...", ...} 1
void AddBuildInfo(prometheus::Registry& registry, const std::map<std::string, std::string>& labels);

}  // namespace normserve::metrics
