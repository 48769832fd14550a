// SPDX-License-Identifier: Apache-2.0
// `normserve-client generate`: one prompt, its continuation streamed to the terminal or as JSON.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/connection.h"
#include "client/request_flags.h"

namespace normserve::client {

struct GenerateOptions {
  ConnectionOptions connection;
  RequestFlags request;
  std::string prompt;     // text; used when has_prompt
  std::string file;       // else read from here; "-" or empty is standard input
  std::string token_ids;  // "1,2,3" instead of text
  bool has_prompt = false;
  bool has_token_ids = false;
  bool json = false;   // one object at the end instead of the text as it comes
  bool unary = false;  // call Generate instead of GenerateStream
};

// Declares the subcommand's flags; `options` outlives `app`.
CLI::App* AddGenerateCommand(CLI::App* app, GenerateOptions* options);

// Writes to standard output. The status is the call's own.
absl::Status RunGenerate(const GenerateOptions& options);

}  // namespace normserve::client
