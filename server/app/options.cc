// SPDX-License-Identifier: Apache-2.0
#include "app/options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "app/byte_size.h"
#include "app/version.h"
#include "app/yaml_config.h"
#include "base/status_macros.h"

namespace normserve::app {
namespace {

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

CLI::IsMember OneOf(std::vector<std::string> values) { return CLI::IsMember(std::move(values)); }
CLI::IsMember Dtypes() { return OneOf({"float32", "bfloat16"}); }
CLI::IsMember Folds() { return OneOf({"auto", "on", "off"}); }

void AddModelFlags(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  app.add_option("--model", raw.models, "A model to serve: its name in requests and its folder. Repeatable.")
      ->type_name("NAME=DIR");
  app.add_option("--dtype", o.dtype, "Type of activations and KV cache: float32 or bfloat16.")
      ->type_name("TYPE")->check(Dtypes())->capture_default_str();
  app.add_option("--device", o.device,
                 "Where models run: cpu, cuda, or auto (the best that this build and machine have).")
      ->type_name("DEVICE")->check(OneOf({"auto", "cpu", "cuda"}))->capture_default_str();
  app.add_option("--norm-type", raw.norm_types,
                 "Norm family of a model whose config.json cannot say it. Repeatable. [default: the config's]")
      ->type_name("NAME=TYPE");
  app.add_option("--bhyt-seq-len", raw.bhyt_seq_lens,
                 "Training length T in a BHyT model's variance estimate, in tokens. Repeatable. "
                 "[default: the config's seq_len]")
      ->type_name("NAME=TOKENS");
  app.add_option("--fold", o.fold,
                 "Fold norm scales into linear weights: on, off, or auto (on for float32 weights).")
      ->type_name("MODE")->check(Folds())->capture_default_str();
}

void AddEndpointFlags(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  app.add_option("--listen", o.listen, "gRPC address; port 0 picks a free one.")
      ->type_name("HOST:PORT")->capture_default_str();
  app.add_option("--metrics-listen", o.metrics_listen,
                 "Address of the Prometheus endpoint /metrics; port 0 picks a free one.")
      ->type_name("HOST:PORT")->capture_default_str();
  app.add_option("--ready-file", o.ready_file,
                 "Write {\"grpc_port\":..., \"metrics_port\":...} here when serving. [default: none]")
      ->type_name("PATH");
  app.add_option("--drain-timeout", o.drain_timeout_seconds,
                 "On SIGTERM or SIGINT, how long requests in flight may go on, in seconds.")
      ->type_name("SECONDS")->check(CLI::Range(0, 86400))->capture_default_str();
  app.add_option("--log-level", raw.log_level, "Least level logged: debug, info, warning, error.")
      ->type_name("LEVEL")->check(OneOf({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_flag("--log-prompts", o.log_prompts, "Show prompts in the log. [default: off]");
}

void AddEngineFlags(CLI::App& app, RawOptions& raw) {
  constexpr uint32_t kLargest = 1u << 30;
  Options& o = raw.options;
  app.add_option("--block-size", o.block_size, "Tokens per KV cache block, a multiple of 16.")
      ->type_name("TOKENS")->check(CLI::Range(16u, 1024u))->capture_default_str();
  CLI::Option* tokens =
      app.add_option("--kv-cache-tokens", raw.kv_cache_tokens,
                     "Size of each model's KV cache, in tokens. [default: from free memory]")
          ->type_name("TOKENS");
  app.add_option("--kv-cache-memory", raw.kv_cache_memory,
                 "Size of each model's KV cache, in bytes (suffixes K, M, G, T). [default: what "
                 "max-running full contexts need, at most a quarter of free memory and 4 GiB]")
      ->type_name("BYTES")->excludes(tokens);
  app.add_option("--max-step-tokens", o.max_step_tokens,
                 "Most tokens that one engine step computes, prefill and decode together.")
      ->type_name("TOKENS")->check(CLI::Range(1u, kLargest))->capture_default_str();
  app.add_option("--max-running", o.max_running, "Most requests in one engine step.")
      ->type_name("REQUESTS")->check(CLI::Range(1u, kLargest))->capture_default_str();
  app.add_option("--max-waiting", o.max_waiting,
                 "Most requests that wait; beyond, RESOURCE_EXHAUSTED.")
      ->type_name("REQUESTS")->check(CLI::Range(1u, kLargest))->capture_default_str();
  app.add_option("--max-waiting-tokens", o.max_waiting_tokens,
                 "Most prompt tokens that wait; beyond, RESOURCE_EXHAUSTED.")
      ->type_name("TOKENS")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--no-prefix-cache", raw.no_prefix_cache,
               "Do not reuse KV blocks of equal prompt beginnings. [default: reuse]");
  app.add_option("--default-max-new-tokens", o.default_max_new_tokens,
                 "Tokens to generate when neither the request nor the model says, in tokens.")
      ->type_name("TOKENS")->check(CLI::Range(1u, kLargest))->capture_default_str();
  app.add_option("--threads", o.threads, "Compute threads per model; 0: as many as the process may use.")
      ->type_name("THREADS")->check(CLI::Range(0, 4096))->capture_default_str();
  app.add_option("--simd", o.simd,
                 "Best SIMD target that kernels may use, e.g. AVX2, SSE4, EMU128. [default: the machine's]")
      ->type_name("TARGET")->envname("NORMSERVE_SIMD");
}

void AddInspect(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  CLI::App* inspect = app.add_subcommand(
      "inspect", "Load one model folder and print what it is: architecture, size, norms, folds.");
  inspect->configurable(false);
  inspect->add_option("DIR", o.inspect_directory, "The model's folder.")->required();
  inspect->add_flag("--json", o.inspect_json, "Print JSON.");
  inspect->add_option("--dtype", o.dtype, "As of the server.")
      ->type_name("TYPE")->check(Dtypes())->capture_default_str();
  inspect->add_option("--norm-type", raw.inspect_norm_type, "As of the server, without NAME=.")
      ->type_name("TYPE");
  inspect->add_option("--bhyt-seq-len", raw.inspect_bhyt_seq_len, "As of the server, without NAME=.")
      ->type_name("TOKENS");
  inspect->add_option("--fold", o.fold, "As of the server.")
      ->type_name("MODE")->check(Folds())->capture_default_str();
}

using Pair = std::pair<std::string, std::string>;
absl::StatusOr<Pair> SplitPair(const char* flag, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": '", text, "' is not NAME=VALUE"));
  }
  return Pair(text.substr(0, equals), text.substr(equals + 1));
}

// NAME=VALUE flags that speak of a --model.
absl::StatusOr<std::map<std::string, std::string>> PerModel(const char* flag,
                                                            const std::vector<std::string>& values,
                                                            const std::vector<NamedModel>& models) {
  std::map<std::string, std::string> out;
  for (const std::string& value : values) {
    NS_ASSIGN_OR_RETURN(const Pair pair, SplitPair(flag, value));
    bool known = false;
    for (const NamedModel& model : models) known = known || model.name == pair.first;
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": '", pair.first, "' is not the name of a --model"));
    }
    out[pair.first] = pair.second;
  }
  return out;
}

absl::StatusOr<int64_t> PositiveCount(const std::string& flag, const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > (int64_t{1} << 40)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "'; allowed: a number of 1 or more"));
  }
  return value;
}

absl::Status FinishModels(const RawOptions& raw, Options* o) {
  std::set<std::string> names;
  for (const std::string& value : raw.models) {
    NS_ASSIGN_OR_RETURN(Pair pair, SplitPair("--model", value));
    if (!names.insert(pair.first).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model: the name '", pair.first, "' is given twice"));
    }
    o->models.push_back({pair.first, pair.second});
  }
  if (o->models.empty()) {
    return absl::InvalidArgumentError("--model NAME=DIR: at least one is required");
  }
  NS_ASSIGN_OR_RETURN(o->norm_types, PerModel("--norm-type", raw.norm_types, o->models));
  NS_ASSIGN_OR_RETURN(const auto lengths,
                      PerModel("--bhyt-seq-len", raw.bhyt_seq_lens, o->models));
  for (const auto& [name, text] : lengths) {
    NS_ASSIGN_OR_RETURN(o->bhyt_seq_lens[name], PositiveCount("--bhyt-seq-len " + name, text));
  }
  return absl::OkStatus();
}

absl::Status FinishInspect(const RawOptions& raw, Options* o) {
  const std::string name = std::filesystem::path(o->inspect_directory).filename().string();
  o->models.push_back({name.empty() ? "model" : name, o->inspect_directory});
  if (!raw.inspect_norm_type.empty()) o->norm_types[o->models[0].name] = raw.inspect_norm_type;
  if (!raw.inspect_bhyt_seq_len.empty()) {
    NS_ASSIGN_OR_RETURN(o->bhyt_seq_lens[o->models[0].name],
                        PositiveCount("--bhyt-seq-len", raw.inspect_bhyt_seq_len));
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> Finish(const RawOptions& raw, bool inspect) {
  Options o = raw.options;
  o.command = inspect     ? Command::kInspect
              : raw.check ? Command::kCheck
                          : Command::kServe;
  NS_RETURN_IF_ERROR(inspect ? FinishInspect(raw, &o) : FinishModels(raw, &o));
  if (o.block_size % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-size: ", o.block_size, "; allowed: a multiple of 16, 16 to 1024"));
  }
  if (!raw.kv_cache_tokens.empty()) {
    NS_ASSIGN_OR_RETURN(o.kv_cache_tokens, PositiveCount("--kv-cache-tokens", raw.kv_cache_tokens));
  }
  if (!raw.kv_cache_memory.empty()) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(raw.kv_cache_memory);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv-cache-memory: ", bytes.status().message()));
    }
    o.kv_cache_memory_bytes = *bytes;
  }
  o.prefix_cache = !raw.no_prefix_cache;
  o.log_level = raw.log_level == "debug"     ? base::LogLevel::kDebug
                : raw.log_level == "warning" ? base::LogLevel::kWarning
                : raw.log_level == "error"   ? base::LogLevel::kError
                                             : base::LogLevel::kInfo;
  return o;
}

}  // namespace

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv) {
  RawOptions raw;
  CLI::App app("normserve serves BHyT, SimpleGPT and Llama checkpoints over gRPC.", "normserve");
  app.set_version_flag("--version", VersionLine());
  app.set_config("--config", "", "Read flags from this YAML file, by their long names.")
      ->type_name("FILE");
  app.config_formatter(std::make_shared<YamlConfig>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddModelFlags(app, raw);
  AddEndpointFlags(app, raw);
  AddEngineFlags(app, raw);
  app.add_flag("--check", raw.check, "Load and check everything, print what would be served, exit.");
  AddInspect(app, raw);

  ParsedCommandLine parsed;
  // CLI11 reports help, version and errors by throwing; this is where that ends.
  try {
    app.parse(argc, argv);
  } catch (const CLI::FileError& missing) {
    parsed.exit_code = 2;
    parsed.error = absl::StrCat("normserve: --config: ", missing.what());
    return parsed;
  } catch (const CLI::ParseError& outcome) {
    std::ostringstream out;
    std::ostringstream error;
    parsed.exit_code = app.exit(outcome, out, error) == 0 ? 0 : 2;
    parsed.out = out.str();
    if (parsed.exit_code != 0) parsed.error = absl::StrCat("normserve: ", outcome.what());
    return parsed;
  }
  absl::StatusOr<Options> options = Finish(raw, app.got_subcommand("inspect"));
  if (options.ok()) {
    parsed.options = *std::move(options);
  } else {
    parsed.exit_code = 2;
    parsed.error = absl::StrCat("normserve: ", std::string(options.status().message()));
  }
  return parsed;
}

}  // namespace normserve::app
