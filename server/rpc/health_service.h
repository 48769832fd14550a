// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1: one status per service name, with watchers. gRPC's built-in service is not used:
// it is switched on by a process-wide flag, starts as SERVING, and reflection cannot describe it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"

namespace normserve::rpc {

// Any thread. NOT_SERVING from the start for every known name; SERVING once, for all together; then
// NOT_SERVING for good.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `names` beside "", the whole server.
  explicit HealthService(std::vector<std::string> names);
  ~HealthService() override;

  void SetServing();  // no effect after Freeze
  void Freeze();      // NOT_SERVING, whatever comes after
  void EndWatches();  // ends the watching calls, so that the server can shut down at once

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  bool Known(const std::string& name) const;
  void SetAll(Status status);
  void Remove(const Watcher* watcher);

  const std::vector<std::string> names_;
  std::mutex mutex_;
  Status status_ = grpc::health::v1::HealthCheckResponse::NOT_SERVING;  // of every known name
  bool frozen_ = false;
  bool ended_ = false;
  std::vector<std::shared_ptr<Watcher>> watchers_;
  std::vector<std::shared_ptr<Watcher>>
      strangers_;  // watch unknown names: SERVICE_UNKNOWN until they leave
};

}  // namespace normserve::rpc
