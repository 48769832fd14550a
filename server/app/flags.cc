// SPDX-License-Identifier: Apache-2.0
#include "app/flags.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace normserve::app {
namespace {

CLI::IsMember OneOf(std::vector<std::string> values) { return CLI::IsMember(std::move(values)); }
CLI::IsMember Dtypes() { return OneOf({"auto", "float32", "bfloat16"}); }
CLI::IsMember CacheDtypes() { return OneOf({"auto", "int8"}); }
CLI::IsMember Quantizations() { return OneOf({"none", "int8", "int4", "fp8"}); }
CLI::IsMember HeadQuantizations() { return OneOf({"auto", "none", "int8", "int4", "fp8"}); }
CLI::IsMember Folds() { return OneOf({"auto", "on", "off"}); }

std::string CheckDevice(const std::string& device) {
  int index = 0;
  const bool numbered =
      absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &index) && index >= 0;
  if (numbered || device == "auto" || device == "cpu" || device == "cuda" || device == "cuda-emulated") return "";
  return device + " not in {auto,cpu,cuda,cuda:N,cuda-emulated}";
}

void AddCacheDtypeFlag(CLI::App& app, Options& o) {
  app.add_option("--kv-cache-dtype", o.kv_cache_dtype,
                 "Type of the KV cache: auto (as --dtype says), or on the CPU int8, each token's keys and values of "
                 "a head rounded by a scale of their own: about a quarter of float32's memory, half of bfloat16's.")
      ->type_name("TYPE")
      ->check(CacheDtypes())
      ->capture_default_str();
}

void AddQuantizeFlags(CLI::App& app, Options& o) {
  app.add_option("--quantize", o.quantize,
                 "Round the layers' linear weights when loading: none, int8 (8.5 bits each), int4 (5 bits "
                 "each, on the CPU), fp8 (e4m3, on a GPU). Norms and activations are not touched.")
      ->type_name("TYPE")
      ->check(Quantizations())
      ->capture_default_str();
  app.add_option("--quantize-head", o.quantize_head,
                 "The same for the embedding table and the output head; auto: int8 with --quantize, "
                 "else none.")
      ->type_name("TYPE")
      ->check(HeadQuantizations())
      ->capture_default_str();
}

void AddModelFlags(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  app.add_option("--model", raw.models,
                 "A model to serve: its name in requests (1 to 128 letters, digits, and . _ - : /) and "
                 "its folder. Repeatable.")
      ->type_name("NAME=DIR");
  app.add_option("--dtype", o.dtype,
                 "Type of weights and KV cache: float32 or bfloat16; auto: float32 on the CPU, bfloat16 on a GPU. "
                 "Weights that a file has in bfloat16 (on the CPU float16, too) stay so under float32, losslessly.")
      ->type_name("TYPE")
      ->check(Dtypes())
      ->capture_default_str();
  AddCacheDtypeFlag(app, o);
  app.add_option(
         "--device", o.device,
         "Where models run: cpu, cuda or cuda:N (a GPU by its number; cuda is cuda:0), or auto (cuda where this "
         "build and machine have it, else cpu). cuda-emulated runs the CUDA kernels on the CPU, very slowly: "
         "for tests.")
      ->type_name("DEVICE")
      ->check(CheckDevice)
      ->capture_default_str();
  app.add_option("--norm-type", raw.norm_types,
                 "Norm family of a model whose config.json cannot say it. Repeatable. [default: "
                 "the config's]")
      ->type_name("NAME=TYPE");
  app.add_option("--bhyt-seq-len", raw.bhyt_seq_lens,
                 "Training length T in a BHyT model's variance estimate, in tokens. Repeatable. "
                 "[default: the config's seq_len]")
      ->type_name("NAME=TOKENS");
  app.add_option("--fold", o.fold,
                 "Fold norm scales into linear weights: on, off, or auto (on for float32 weights).")
      ->type_name("MODE")
      ->check(Folds())
      ->capture_default_str();
  AddQuantizeFlags(app, o);
}

void AddEndpointFlags(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  app.add_option("--listen", o.listen, "gRPC address; port 0 picks a free one.")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--metrics-listen", o.metrics_listen,
                 "Address of the Prometheus endpoint /metrics; port 0 picks a free one.")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option(
         "--ready-file", o.ready_file,
         "Write {\"grpc_port\":..., \"metrics_port\":...} here when serving. [default: none]")
      ->type_name("PATH");
  app.add_option("--drain-timeout", o.drain_timeout_seconds,
                 "On SIGTERM or SIGINT, how long requests in flight may go on, in seconds.")
      ->type_name("SECONDS")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.add_option("--log-level", raw.log_level, "Least level logged: debug, info, warning, error.")
      ->type_name("LEVEL")
      ->check(OneOf({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_flag("--log-prompts", o.log_prompts, "Show prompts in the log. [default: off]");
}

void AddEngineFlags(CLI::App& app, RawOptions& raw) {
  constexpr uint32_t kLargest = 1u << 30;
  Options& o = raw.options;
  app.add_option("--block-size", o.block_size, "Tokens per KV cache block, a multiple of 16.")
      ->type_name("TOKENS")
      ->check(CLI::Range(16u, 1024u))
      ->capture_default_str();
  CLI::Option* tokens =
      app.add_option("--kv-cache-tokens", raw.kv_cache_tokens,
                     "Size of each model's KV cache, in tokens, rounded up to whole blocks. "
                     "[default: as --kv-cache-memory says]")
          ->type_name("TOKENS");
  app.add_option("--kv-cache-memory", raw.kv_cache_memory,
                 "Size of each model's KV cache, in bytes (suffixes K, M, G, T). [default: what "
                 "max-running full contexts need, at most a quarter of free memory and 4 GiB; on a GPU at most what "
                 "memory-fraction leaves]")
      ->type_name("BYTES")
      ->excludes(tokens);
  app.add_option("--attention", o.attention,
                 "Kernels of attention: own, or on a GPU FlashInfer's, for bfloat16 and heads of 64 or 128.")
      ->type_name("KIND")
      ->check(OneOf({"own", "flashinfer"}))
      ->capture_default_str();
  app.add_flag("--batch-invariant", o.batch_invariant,
               "Give the same answer to the last bit whatever runs beside a request, also on a GPU; on the CPU it is "
               "always so. [default: off]");
  app.add_flag("--dependent-launch", o.dependent_launch,
               "On a GPU of compute capability 9.0 or newer: place a kernel's blocks while the last kernel still runs. "
               "[default: off]");
  app.add_option("--memory-fraction", o.memory_fraction,
                 "Share of a GPU's memory that everything on it may take, KV caches without a size of their own "
                 "included.")
      ->type_name("SHARE")
      ->check(CLI::Range(0.05, 1.0))
      ->capture_default_str();
  app.add_option("--max-step-tokens", o.max_step_tokens,
                 "Most tokens that one engine step computes, prefill and decode together.")
      ->type_name("TOKENS")
      ->check(CLI::Range(1u, kLargest))
      ->capture_default_str();
  app.add_option("--max-mixed-step-tokens", o.max_mixed_step_tokens,
                 "Most tokens of a step in which a request decodes: bounds the wait between tokens while "
                 "prompts are computed, which then takes longer. At least 8 prompt tokens may always come "
                 "along. 0: max-step-tokens.")
      ->type_name("TOKENS")
      ->check(CLI::Range(0u, kLargest))
      ->capture_default_str();
  app.add_option("--max-running", o.max_running, "Most requests in one engine step.")
      ->type_name("REQUESTS")
      ->check(CLI::Range(1u, kLargest))
      ->capture_default_str();
  app.add_option("--max-waiting", o.max_waiting,
                 "Most requests that wait; beyond, RESOURCE_EXHAUSTED.")
      ->type_name("REQUESTS")
      ->check(CLI::Range(1u, kLargest))
      ->capture_default_str();
  app.add_option("--max-waiting-tokens", o.max_waiting_tokens,
                 "Most prompt tokens that wait; beyond, RESOURCE_EXHAUSTED.")
      ->type_name("TOKENS")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->capture_default_str();
  app.add_flag("--no-prefix-cache", raw.no_prefix_cache,
               "Do not reuse KV blocks of equal prompt beginnings. [default: reuse]");
  app.add_option("--draft-tokens", o.draft_tokens,
                 "Guess up to this many next tokens of a request from its own text (prompt lookup) and compute "
                 "them in one step, while few rows run. Results are the same; 0: off.")
      ->type_name("TOKENS")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  app.add_option("--default-max-new-tokens", o.default_max_new_tokens,
                 "Tokens to generate when neither the request nor the model says, in tokens.")
      ->type_name("TOKENS")
      ->check(CLI::Range(1u, kLargest))
      ->capture_default_str();
  app.add_option("--threads", o.threads,
                 "Compute threads per model; 0: as many as the process may use.")
      ->type_name("THREADS")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_flag("--pin-threads", o.pin_threads,
               "Keep every compute thread on a CPU of its own, real cores first, one model after the other: for "
               "machines that serve nothing else.");
  app.add_option(
         "--simd", o.simd,
         "Best SIMD target that kernels may use, in upper or lower case: AVX2, SSE4, SCALAR, ... "
         "[default: the machine's]")
      ->type_name("TARGET")
      ->envname("NORMSERVE_SIMD");
}

void AddInspect(CLI::App& app, RawOptions& raw) {
  Options& o = raw.options;
  CLI::App* inspect = app.add_subcommand(
      "inspect", "Load one model folder and print what it is: architecture, size, norms, folds.");
  inspect->configurable(false);
  inspect->add_option("DIR", o.inspect_directory, "The model's folder.")->required();
  inspect->add_flag("--json", o.inspect_json, "Print JSON.");
  inspect->add_option("--dtype", o.dtype, "As of the server.")
      ->type_name("TYPE")
      ->check(Dtypes())
      ->capture_default_str();
  AddCacheDtypeFlag(*inspect, o);
  inspect->add_option("--norm-type", raw.inspect_norm_type, "As of the server, without NAME=.")
      ->type_name("TYPE");
  inspect
      ->add_option("--bhyt-seq-len", raw.inspect_bhyt_seq_len, "As of the server, without NAME=.")
      ->type_name("TOKENS");
  inspect->add_option("--fold", o.fold, "As of the server.")
      ->type_name("MODE")
      ->check(Folds())
      ->capture_default_str();
  AddQuantizeFlags(*inspect, o);
}

}  // namespace

void AddFlags(CLI::App& app, RawOptions& raw) {
  AddModelFlags(app, raw);
  AddEndpointFlags(app, raw);
  AddEngineFlags(app, raw);
  app.add_flag("--check", raw.check,
               "Load and check everything, print what would be served, exit.");
  AddInspect(app, raw);
}

}  // namespace normserve::app
