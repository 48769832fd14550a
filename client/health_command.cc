// SPDX-License-Identifier: Apache-2.0
// See health_command.h.
#include "client/health_command.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/request_flags.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace normserve::client {

namespace health = ::grpc::health::v1;

CLI::App* AddHealthCommand(CLI::App* app, ConnectionOptions* options) {
  CLI::App* command = app->add_subcommand("health", "Ask whether the server, or one model, serves");
  AddConnectionFlags(command, options);
  return command;
}

absl::Status RunHealth(const ConnectionOptions& options) {
  const std::unique_ptr<health::Health::Stub> stub = health::Health::NewStub(
      grpc::CreateChannel(options.target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  PrepareContext(options, &context);
  health::HealthCheckRequest request;
  request.set_service(options.model);
  health::HealthCheckResponse response;
  NS_RETURN_IF_ERROR(FromGrpc(stub->Check(&context, request, &response)));
  const std::string& status = health::HealthCheckResponse::ServingStatus_Name(response.status());
  std::printf("%s\n", status.c_str());
  if (response.status() == health::HealthCheckResponse::SERVING) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(options.target, " is ", status));
}

}  // namespace normserve::client
