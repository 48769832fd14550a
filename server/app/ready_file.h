// SPDX-License-Identifier: Apache-2.0
// The file that tells a waiting script which ports were picked.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace normserve::app {

// {"grpc_port": N, "metrics_port": M}, there whole or not at all.
absl::Status WriteReadyFile(const std::string& path, int grpc_port, int metrics_port);

// Whether WriteReadyFile would succeed there as far as one can tell; leaves nothing behind.
absl::Status CheckReadyFile(const std::string& path);

// Before loading: one left by an earlier run must not speak for this one.
void RemoveReadyFile(const std::string& path);

}  // namespace normserve::app
