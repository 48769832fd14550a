// SPDX-License-Identifier: Apache-2.0
// What a model is, as text for people or JSON for programs: `normserve inspect` and `--check`.
#pragma once

#include <string>

#include "app/model_loader.h"

namespace normserve::app {

// `checkpoint.model` must be there (not yet with a runner). Both end in a newline.
std::string InspectTable(const Checkpoint& checkpoint);
std::string InspectJson(const Checkpoint& checkpoint);

// One model of --check, after MakeRunner: one line.
std::string CheckLine(const Checkpoint& checkpoint);

}  // namespace normserve::app
