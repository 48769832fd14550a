// SPDX-License-Identifier: Apache-2.0
// Responses as JSON for people and scripts: enums by short name, ids as numbers.
#pragma once

#include "nlohmann/json_fwd.hpp"
#include "normserve/v1/generation.pb.h"

namespace normserve::client {

// "max_new_tokens", "eos", ...; "unspecified" while not finished.
const char* FinishReasonName(v1::FinishReason reason);

nlohmann::json ToJson(const v1::GenerateResponse& response);
nlohmann::json ToJson(const v1::ItemScore& score);

// Appends a stream's chunk: deltas are joined, fields of the last chunk are taken over.
void AppendChunk(const v1::GenerateChunk& chunk, v1::GenerateResponse* response);

}  // namespace normserve::client
