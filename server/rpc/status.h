// SPDX-License-Identifier: Apache-2.0
// The one table from our status codes to gRPC's.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace normserve::rpc {

// Code by code. A message longer than 2 KiB is cut: it travels as trailing metadata, which clients
// limit to 8 KiB by default.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace normserve::rpc
