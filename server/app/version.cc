// SPDX-License-Identifier: Apache-2.0
#include "app/version.h"

namespace normserve::app {

std::map<std::string, std::string> BuildInfo() {
  return {{"version", NORMSERVE_VERSION},
          {"git_commit", NORMSERVE_GIT_COMMIT},
          {"compiler", NORMSERVE_COMPILER},
          {"libtorch", NORMSERVE_LIBTORCH}};
}

std::string VersionLine() {
  const std::map<std::string, std::string> info = BuildInfo();
  return "normserve " + info.at("version") + " (git " + info.at("git_commit") + ", " +
         info.at("compiler") + ", LibTorch " + info.at("libtorch") + ")";
}

}  // namespace normserve::app
