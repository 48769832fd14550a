// SPDX-License-Identifier: Apache-2.0
// The command line and the config file as plain data. No model, no engine: what a flag means is
// done elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace normserve::app {

enum class Command { kServe, kCheck, kInspect };

struct NamedModel {
  std::string name;
  std::string directory;
};

struct Options {
  Command command = Command::kServe;

  std::vector<NamedModel> models;
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string device = "auto";
  std::string dtype = "auto";  // auto: float32, on a GPU bfloat16
  std::string kv_cache_dtype = "auto";  // auto: as dtype; or int8, on the CPU
  std::string ready_file;  // empty: none

  std::map<std::string, std::string> norm_types;  // by model name
  std::map<std::string, int64_t> bhyt_seq_lens;   // by model name
  std::string fold = "auto";
  std::string quantize = "none";
  std::string quantize_head = "auto";  // auto: int8 wherever `quantize` is not none

  uint32_t block_size = 32;
  std::optional<uint64_t> kv_cache_tokens;        // per model
  std::optional<uint64_t> kv_cache_memory_bytes;  // per model
  std::string attention = "own";  // or flashinfer, on a GPU
  bool dependent_launch = false;   // on a GPU
  bool batch_invariant = false;  // on a GPU; on the CPU it is always so
  double memory_fraction = 0.9;  // of a GPU's memory
  uint32_t max_step_tokens = 512;
  uint32_t max_mixed_step_tokens = 0;  // of a step that also decodes; 0: max_step_tokens
  uint32_t max_running = 64;
  uint32_t max_waiting = 1024;
  uint64_t max_waiting_tokens = 1 << 20;
  bool prefix_cache = true;
  uint32_t draft_tokens = 0;  // guesses per request and step
  uint32_t default_max_new_tokens = 256;

  int threads = 0;   // 0: the machine's cores
  bool pin_threads = false;  // one CPU each
  std::string simd;  // empty: the best that the machine has
  base::LogLevel log_level = base::LogLevel::kInfo;
  bool log_prompts = false;
  uint32_t drain_timeout_seconds = 30;

  std::string inspect_directory;
  bool inspect_json = false;
};

// What parsing came to: options to run with, or text to print and a code to exit with.
struct ParsedCommandLine {
  std::optional<Options> options;
  int exit_code = 0;
  std::string out;    // for standard output: --help, --version
  std::string error;  // for standard error: one sentence naming the flag or key
};

// Flags, then the --config file for what they leave open, then the environment (NORMSERVE_SIMD),
// then defaults.
ParsedCommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace normserve::app
