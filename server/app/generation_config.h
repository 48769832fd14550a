// SPDX-License-Identifier: Apache-2.0
// generation_config.json: the defaults of requests. What of it we do not follow is left alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "rpc/served_model.h"

namespace normserve::app {

// The defaults that `directory`/generation_config.json states; none when there is no such file. An
// error names file and key: a value out of the API's range would make every request fail.
// End-of-sequence ids are not read here: the model's description unites them.
absl::StatusOr<rpc::GenerationDefaults> LoadGenerationDefaults(const std::string& directory);

}  // namespace normserve::app
