// SPDX-License-Identifier: Apache-2.0
// The gRPC server: the services, the port and the connection policy. No grpc header here, so that
// the composition root can hold it beside torch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "rpc/model_table.h"

namespace normserve::rpc {

struct ServerOptions {
  std::string listen;                    // HOST:PORT as gRPC takes it; port 0 picks a free one
  std::vector<std::string> model_names;  // health knows them before they are loaded
  bool log_prompts = false;
};

// Clients may ping this often, also without data: calls that are quiet for minutes must survive.
inline constexpr absl::Duration kClientPingInterval = absl::Seconds(10);
inline constexpr int kMaxReceiveBytes = 64 << 20;

// Used by main; the services inside run on gRPC's threads.
class Server {
 public:
  // Listens at once: calls are UNAVAILABLE and health NOT_SERVING until SetServing, so that a port
  // already in use shows before models are loaded. `models` and `log` outlive the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const ModelTable* models,
                                                       const base::Log* log);
  ~Server();

  int port() const;
  // After ModelTable::Publish.
  void SetServing();
  // Health is NOT_SERVING from now on. Engines are drained by their owner.
  void BeginDrain();
  // Lets calls that have ended reach their clients until `deadline`, then cuts what is left. A call that
  // arrives after this began and before its client hears of it ends as CANCELLED, in gRPC's core: none
  // of its interfaces lets a server say UNAVAILABLE there.
  void Shutdown(absl::Time deadline);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace normserve::rpc
