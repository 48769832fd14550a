// SPDX-License-Identifier: Apache-2.0
// What this binary is. The values come from CMake.
#pragma once

#include <map>
#include <string>

namespace normserve::app {

// "normserve 0.1.0 (git abc1234, gcc 12.2.0, LibTorch 2.11.0)"
std::string VersionLine();

// The same by name, for normserve_build_info.
std::map<std::string, std::string> BuildInfo();

}  // namespace normserve::app
