// SPDX-License-Identifier: Apache-2.0
// Debian 12 builds abseil with a string_view of its own, Debian 13 with the standard one. We use
// std::string_view in our signatures and cross over here.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace normserve::base {

// The same characters, as abseil's functions (StrCat, ...) take them.
inline absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace normserve::base
