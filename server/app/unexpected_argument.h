// SPDX-License-Identifier: Apache-2.0
// What to say of a flag that there is not.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace normserve::app {

// One sentence on the first argument that nothing took, and on the flag it may have been meant to be.
// `app` has parsed.
std::string UnexpectedArgument(const CLI::App& app);

}  // namespace normserve::app
