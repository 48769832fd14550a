// SPDX-License-Identifier: Apache-2.0
#include "metrics/exposer.h"

#include <netdb.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "metrics/process_metrics.h"

namespace normserve::metrics {
namespace {

absl::Status ListenError(const std::string& listen, absl::string_view reason) {
  return absl::UnavailableError(
      absl::StrCat("--metrics-listen ", listen, ": cannot listen there: ", reason));
}

// HOST:PORT with the host as a number, the only form that the HTTP server takes. Tries the address
// once, because the HTTP server does not say why it cannot listen.
absl::StatusOr<std::string> NumericAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return ListenError(listen, "it is not of the form HOST:PORT");
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), listen.c_str() + colon + 1, &hints, &found);
  if (error != 0) return ListenError(listen, gai_strerror(error));

  char number[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "";
  getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof(number), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  const bool v6 = found->ai_family == AF_INET6;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  const bool usable =
      bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, /*backlog=*/1) == 0;
  const int failed = usable ? 0 : errno;
  close(fd);
  freeaddrinfo(found);
  if (failed != 0) return ListenError(listen, std::strerror(failed));
  return v6 ? absl::StrCat("[", number, "]:", port) : absl::StrCat(number, ":", port);
}

}  // namespace

struct Exposer::Impl {
  std::vector<std::shared_ptr<prometheus::Collectable>> sources;
  std::unique_ptr<prometheus::Exposer> exposer;  // last: ends before what it reads
};

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(
    const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> sources) {
  absl::StatusOr<std::string> address = NumericAddress(listen);
  if (!address.ok()) return address.status();
  auto impl = std::make_unique<Impl>();
  impl->sources = std::move(sources);
  impl->sources.push_back(std::make_shared<ProcessMetrics>());
  // The HTTP library reports a failed start by throwing; nothing else here does.
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(*address);
  } catch (const std::exception& error) {
    return ListenError(listen, error.what());
  }
  for (const auto& source : impl->sources) impl->exposer->RegisterCollectable(source);
  return std::unique_ptr<Exposer>(new Exposer(std::move(impl)));
}

Exposer::Exposer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Exposer::~Exposer() = default;

int Exposer::port() const {
  const std::vector<int> ports = impl_->exposer->GetListeningPorts();
  return ports.empty() ? 0 : ports.front();
}

void AddBuildInfo(prometheus::Registry& registry,
                  const std::map<std::string, std::string>& labels) {
  prometheus::BuildGauge()
      .Name("normserve_build_info")
      .Help("Always 1; the labels say what was built.")
      .Register(registry)
      .Add({labels.begin(), labels.end()})
      .Set(1);
}

}  // namespace normserve::metrics
