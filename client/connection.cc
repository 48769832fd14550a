// SPDX-License-Identifier: Apache-2.0
// See connection.h.
#include "client/connection.h"

#include <chrono>

namespace normserve::client {

std::vector<std::unique_ptr<Stub>> Connect(const ConnectionOptions& options, int count) {
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < count; ++i) {
    grpc::ChannelArguments arguments;
    // Without its own pool a second channel to the same target would share the first's connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // A response with the whole vocabulary's log-probabilities passes 4 MiB easily.
    arguments.SetMaxReceiveMessageSize(-1);
    stubs.push_back(v1::GenerationService::NewStub(
        grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

void PrepareContext(const ConnectionOptions& options, grpc::ClientContext* context) {
  if (options.timeout_s > 0) {
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(options.timeout_s * 1e6)));
  }
  if (!options.request_id.empty()) context->AddMetadata("x-request-id", options.request_id);
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::string CodeName(absl::StatusCode code) {
  const std::string name = absl::StatusCodeToString(code);
  return name.empty() ? "CODE_" + std::to_string(static_cast<int>(code)) : name;
}

}  // namespace normserve::client
