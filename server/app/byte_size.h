// SPDX-License-Identifier: Apache-2.0
// Byte counts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace normserve::app {

// "1048576", "512M", "2GiB", "1.5G": K, M, G, T are powers of 1024, with or without "B" or "iB".
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);

// "1.5 GiB", for reading.
std::string FormatByteSize(uint64_t bytes);

}  // namespace normserve::app
