// SPDX-License-Identifier: Apache-2.0
// The flags as CLI11 knows them: names, defaults, help texts. What their values mean is
// options.cc's.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/options.h"

namespace normserve::app {

// What CLI11 fills before it becomes Options: NAME=VALUE pairs and sizes are still text.
struct RawOptions {
  Options options;
  bool check = false;
  bool no_prefix_cache = false;
  std::vector<std::string> models;
  std::vector<std::string> norm_types;
  std::vector<std::string> bhyt_seq_lens;
  std::string kv_cache_tokens;
  std::string kv_cache_memory;
  std::string log_level = "info";
  std::string inspect_norm_type;
  std::string inspect_bhyt_seq_len;
};

// `raw` outlives `app`. "inspect" is a subcommand.
void AddFlags(CLI::App& app, RawOptions& raw);

}  // namespace normserve::app
