// SPDX-License-Identifier: Apache-2.0
#include "app/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "app/byte_size.h"
#include "app/flags.h"
#include "app/unexpected_argument.h"
#include "app/version.h"
#include "app/yaml_config.h"
#include "base/regular_file.h"
#include "base/status_macros.h"

namespace normserve::app {
namespace {

using Pair = std::pair<std::string, std::string>;
absl::StatusOr<Pair> SplitPair(const char* flag, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": '", text, "' is not ", std::string_view(flag) == "--model" ? "NAME=DIR" : "NAME=VALUE"));
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

constexpr int64_t kMostSeqLen = int64_t{1} << 40;
constexpr int64_t kMostCacheTokens = std::numeric_limits<int32_t>::max();  // slots are int32

absl::StatusOr<int64_t> PositiveCount(const std::string& flag, const std::string& text,
                                      int64_t most) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "'; allowed: a number of 1 to ", most));
  }
  return value;
}

// gRPC takes a port modulo 65536, and names no flag when it cannot listen.
absl::Status CheckAddress(const char* flag, const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", address, "' is not HOST:PORT with a port of 0 to 65535"));
  }
  return absl::OkStatus();
}

// A name goes into requests, metrics, logs and health checks: nothing there needs quoting.
absl::Status CheckName(const std::string& name) {
  constexpr size_t kMostBytes = 128;
  const bool known = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || std::string_view("._-:/").find(c) != std::string_view::npos;
  });
  if (known && !name.empty() && name.size() <= kMostBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--model: the name '", absl::CEscape(name), "' (", name.size(),
                   " bytes); allowed: 1 to ", kMostBytes, " letters, digits, and . _ - : /"));
}

absl::Status FinishModels(const RawOptions& raw, Options* o) {
  std::set<std::string> names;
  for (const std::string& value : raw.models) {
    NS_ASSIGN_OR_RETURN(Pair pair, SplitPair("--model", value));
    NS_RETURN_IF_ERROR(CheckName(pair.first));
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
  NS_ASSIGN_OR_RETURN(const auto lengths, PerModel("--bhyt-seq-len", raw.bhyt_seq_lens, o->models));
  for (const auto& [name, text] : lengths) {
    NS_ASSIGN_OR_RETURN(o->bhyt_seq_lens[name], PositiveCount("--bhyt-seq-len " + name, text, kMostSeqLen));
  }
  return absl::OkStatus();
}

absl::Status FinishInspect(const RawOptions& raw, Options* o) {
  const std::string name = std::filesystem::path(o->inspect_directory).filename().string();
  o->models.push_back({name.empty() ? "model" : name, o->inspect_directory});
  o->device = "cpu";  // nothing is computed
  if (!raw.inspect_norm_type.empty()) o->norm_types[o->models[0].name] = raw.inspect_norm_type;
  if (!raw.inspect_bhyt_seq_len.empty()) {
    NS_ASSIGN_OR_RETURN(o->bhyt_seq_lens[o->models[0].name],
                        PositiveCount("--bhyt-seq-len", raw.inspect_bhyt_seq_len, kMostSeqLen));
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> Finish(const RawOptions& raw, bool inspect) {
  Options o = raw.options;
  o.command = inspect ? Command::kInspect : raw.check ? Command::kCheck : Command::kServe;
  NS_RETURN_IF_ERROR(inspect ? FinishInspect(raw, &o) : FinishModels(raw, &o));
  NS_RETURN_IF_ERROR(CheckAddress("--listen", o.listen));
  NS_RETURN_IF_ERROR(CheckAddress("--metrics-listen", o.metrics_listen));
  if (o.block_size % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-size: ", o.block_size, "; allowed: a multiple of 16, 16 to 1024"));
  }
  if (!raw.kv_cache_tokens.empty()) {
    NS_ASSIGN_OR_RETURN(o.kv_cache_tokens, PositiveCount("--kv-cache-tokens", raw.kv_cache_tokens,
                                                         kMostCacheTokens));
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
  absl::AsciiStrToUpper(&o.simd);  // as every target is named
  o.log_level = raw.log_level == "debug"     ? base::LogLevel::kDebug
                : raw.log_level == "warning" ? base::LogLevel::kWarning
                : raw.log_level == "error"   ? base::LogLevel::kError
                                             : base::LogLevel::kInfo;
  return o;
}

}  // namespace

ParsedCommandLine ParseCommandLine(int argc, const char* const* argv) {
  RawOptions raw;
  CLI::App app(
      "normserve serves BHyT, SimpleGPT, LNS, Peri-LN, DyT, Llama and nanoGPT checkpoints over "
      "gRPC.",
      "normserve");
  app.set_version_flag("--version", VersionLine());
  app.set_config("--config", "", "Read flags from this YAML file, by their long names.")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return std::string(base::CheckRegularFile(path).message());
      });
  app.config_formatter(std::make_shared<YamlConfig>(&app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddFlags(app, raw);

  ParsedCommandLine parsed;
  // CLI11 reports help, version and errors by throwing; this is where that ends.
  try {
    app.parse(argc, argv);
  } catch (const CLI::FileError& missing) {
    parsed.exit_code = 2;
    parsed.error = absl::StrCat("normserve: --config: ", missing.what());
    return parsed;
  } catch (const CLI::ExtrasError&) {
    parsed.exit_code = 2;
    parsed.error = absl::StrCat("normserve: ", UnexpectedArgument(app));
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
