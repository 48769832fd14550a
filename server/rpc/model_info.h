// SPDX-License-Identifier: Apache-2.0
// A served model as the ModelInfo message.
#pragma once

#include "normserve/v1/generation.pb.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

void DescribeModel(const ServedModel& model, v1::ModelInfo* out);

}  // namespace normserve::rpc
