// SPDX-License-Identifier: Apache-2.0
// Reads files that come from outside, and only regular ones: a FIFO holds up whoever opens it, and a
// device may never end.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace normserve::base {

// OK for a regular file or a link to one. Errors are one sentence that begins with the path:
// NOT_FOUND when it cannot be looked at, else INVALID_ARGUMENT.
absl::Status CheckRegularFile(const std::string& path);

// The whole of a regular file of at most `max_bytes`. Errors as above.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, uint64_t max_bytes);

}  // namespace normserve::base
