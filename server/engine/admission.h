// SPDX-License-Identifier: Apache-2.0
// What can never run is refused at the door. Not the queue's bounds, which are Inbox's.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/request.h"
#include "engine/runner.h"

namespace normserve::engine {

// Most tokens of prompt and output together: the model's context or the whole KV cache.
uint32_t MaxSequenceTokens(const RunnerInfo& info);

// INVALID_ARGUMENT naming field, value and limit when the request can never fit, or has an id
// outside the vocabulary (whoever built it has checked that; here it would end the process).
absl::Status CheckRequest(const Request& request, const RunnerInfo& info, bool has_tokenizer);

}  // namespace normserve::engine
