// SPDX-License-Identifier: Apache-2.0
#include "rpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/generation_service.h"
#include "rpc/health_service.h"

namespace normserve::rpc {
namespace {

constexpr char kServiceName[] = "normserve.v1.GenerationService";

std::vector<std::string> HealthNames(const ServerOptions& options) {
  std::vector<std::string> names = options.model_names;
  names.push_back(kServiceName);
  return names;
}

void SetConnectionPolicy(grpc::ServerBuilder* builder) {
  // Half of the documented interval: a ping that the network delays must not make the next one
  // early.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              static_cast<int>(absl::ToInt64Milliseconds(kClientPingInterval / 2)));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // With SO_REUSEPORT a second server on the same port would start and take half of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->SetMaxReceiveMessageSize(kMaxReceiveBytes);
  builder->SetMaxSendMessageSize(-1);
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, const ModelTable* models, const base::Log* log)
      : generation(models, log, options.log_prompts ? PromptLogging::kOn : PromptLogging::kOff),
        health(HealthNames(options)) {}

  GenerationService generation;
  HealthService health;
  int port = 0;
  std::unique_ptr<grpc::Server> server;  // last: ends before the services that it calls
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const ModelTable* models,
                                                      const base::Log* log) {
  auto impl = std::make_unique<Impl>(options, models, log);
  // protobuf would write a line to standard error for every string of a client's that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetConnectionPolicy(&builder);
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterService(&impl->generation);
  builder.RegisterService(&impl->health);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "--listen ", options.listen,
        ": cannot listen there (is the port in use, or the address not one of this machine's?)"));
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(absl::InfinitePast()); }

int Server::port() const { return impl_->port; }

void Server::SetServing() { impl_->health.SetServing(); }

void Server::BeginDrain() { impl_->health.Freeze(); }

void Server::Shutdown(absl::Time deadline) {
  if (impl_->server == nullptr) return;
  impl_->health.Freeze();
  impl_->health.EndWatches();
  impl_->server->Shutdown(absl::ToChronoTime(deadline));
  impl_->server.reset();
}

}  // namespace normserve::rpc
