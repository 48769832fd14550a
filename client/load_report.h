// SPDX-License-Identifier: Apache-2.0
// A load run's records as numbers, a table and JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/latency.h"
#include "client/load_run.h"
#include "nlohmann/json_fwd.hpp"

namespace normserve::client {

struct LoadReport {
  uint64_t offered = 0, sent = 0, unsent = 0, succeeded = 0;
  std::map<std::string, uint64_t> errors;            // by code name; the sum is sent - succeeded
  std::map<std::string, std::string> error_example;  // the first message of each code
  double seconds = 0;
  double offered_per_s = 0;                       // open loop: the rate asked for; else 0
  double achieved_per_s = 0;                      // calls that succeeded
  uint64_t prompt_tokens = 0, output_tokens = 0;  // of calls that succeeded
  double output_tokens_per_s = 0, total_tokens_per_s = 0;
  // Of calls that succeeded, from the intended send time.
  LatencySummary time_to_first_token, inter_token, end_to_end;
  LatencySummary dispatch_lag;       // of every call sent: sent - intended
  std::vector<std::string> invalid;  // why the numbers do not describe the server; empty = they do
};

// The run is invalid when the 99th percentile of the dispatch lag is above the limit, when
// something offered was never sent, or when it was interrupted.
LoadReport Report(const LoadPlan& plan, const LoadOutcome& outcome, double lag_limit_ms);

std::string ToTable(const LoadReport& report);
nlohmann::json ToJson(const LoadReport& report);
// One call of a run that began at start_ns: as --calls-out has it.
nlohmann::json ToJson(const CallRecord& record, int64_t start_ns);

}  // namespace normserve::client
