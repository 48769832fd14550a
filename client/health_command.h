// SPDX-License-Identifier: Apache-2.0
// `normserve-client health`: one standard gRPC health check, for container health checks and
// scripts.
#pragma once

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "client/connection.h"

namespace normserve::client {

// Declares the subcommand's flags; `options` outlives `app`. --model names the model to ask about;
// without it the server as a whole is.
CLI::App* AddHealthCommand(CLI::App* app, ConnectionOptions* options);

// Prints the status. Ok only for SERVING; UNAVAILABLE for another status, else the call's own
// error.
absl::Status RunHealth(const ConnectionOptions& options);

}  // namespace normserve::client
