// SPDX-License-Identifier: Apache-2.0
// How the client reaches a server: channel, deadline, request id, and gRPC statuses as absl ones.
// No TLS here: the server speaks plain text, a proxy in front of it may not.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "normserve/v1/generation.grpc.pb.h"

namespace normserve::client {

using Stub = v1::GenerationService::Stub;

struct ConnectionOptions {
  std::string target = "127.0.0.1:50051";  // HOST:PORT
  std::string model;                       // may be empty when the server has one model
  double timeout_s = 0;                    // per call; 0 = none
  std::string request_id;                  // x-request-id; empty = the server makes one
};

// A stub on a channel of its own (`count` of them never share a TCP connection). Does not wait for
// the server: a call to an absent one ends with UNAVAILABLE.
std::vector<std::unique_ptr<Stub>> Connect(const ConnectionOptions& options, int count);

// Sets deadline and metadata of one call.
void PrepareContext(const ConnectionOptions& options, grpc::ClientContext* context);

// The same code and message. The two enums have the same numbers by design.
absl::Status FromGrpc(const grpc::Status& status);

// "RESOURCE_EXHAUSTED", ... as the gRPC documents spell it.
std::string CodeName(absl::StatusCode code);

}  // namespace normserve::client
