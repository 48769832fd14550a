// SPDX-License-Identifier: Apache-2.0
// `normserve-client load`: a closed or open loop load with a table and JSON of what was measured.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/connection.h"
#include "client/load_run.h"
#include "client/request_flags.h"

namespace normserve::client {

struct LoadOptions {
  ConnectionOptions connection;
  RequestFlags request;
  LoadPlan plan;
  std::string arrival = "constant";
  std::string prompts;                // file; empty = synthetic
  std::string prompt_tokens = "128";  // synthetic: N or LOW:HIGH
  std::string output_tokens = "128";
  uint32_t distinct = 256;  // synthetic prompts made
  int connections = 1;
  double lag_limit_ms = 100;
  bool json = false;      // JSON to standard output instead of the table
  std::string json_file;  // and/or to a file
  std::string calls_file;
  bool no_progress = false;
};

CLI::App* AddLoadCommand(CLI::App* app, LoadOptions* options);

// Fails when no request succeeded or the run is invalid; the report is printed all the same.
absl::Status RunLoad(LoadOptions options);

}  // namespace normserve::client
