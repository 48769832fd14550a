// SPDX-License-Identifier: Apache-2.0
// See load_command.h.
#include "client/load_command.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/load_report.h"
#include "client/progress_bar.h"
#include "client/prompts.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

// Turns Ctrl-C and SIGTERM into LoadRun::Stop while it lives, by waiting for them on a thread of
// its own: no handler, so nothing global. Make it before any other thread starts.
class InterruptWatch {
 public:
  explicit InterruptWatch(LoadRun* run) {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    thread_ = std::thread([this, run] {
      int signal = 0;
      sigwait(&signals_, &signal);
      if (signal != SIGUSR1) run->Stop();
    });
  }
  ~InterruptWatch() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  sigset_t signals_, before_;
  std::thread thread_;
};

absl::StatusOr<v1::ModelInfo> FetchModel(Stub* stub, const ConnectionOptions& connection) {
  grpc::ClientContext context;
  PrepareContext(connection, &context);
  v1::GetModelRequest request;
  request.set_model(connection.model);
  v1::ModelInfo info;
  NS_RETURN_IF_ERROR(FromGrpc(stub->GetModel(&context, request, &info)));
  return info;
}

absl::StatusOr<std::vector<Prompt>> MakePrompts(const LoadOptions& options, uint32_t vocab_size) {
  if (!options.prompts.empty()) {
    NS_ASSIGN_OR_RETURN(const std::string content, ReadAll(options.prompts));
    return ParsePrompts(content);
  }
  SyntheticSpec spec;
  NS_ASSIGN_OR_RETURN(spec.prompt_tokens,
                      ParseTokenRange("--prompt-tokens", options.prompt_tokens));
  NS_ASSIGN_OR_RETURN(spec.output_tokens,
                      ParseTokenRange("--output-tokens", options.output_tokens));
  spec.count = options.distinct;
  spec.vocab_size = vocab_size;
  spec.seed = options.plan.seed;
  return SyntheticPrompts(spec);
}

absl::StatusOr<std::vector<v1::GenerateRequest>> BuildRequests(const LoadOptions& options,
                                                               const v1::ModelInfo& model) {
  NS_ASSIGN_OR_RETURN(const auto prompts, MakePrompts(options, model.vocab_size()));
  v1::GenerateRequest base;
  base.set_model(options.connection.model);
  NS_RETURN_IF_ERROR(ApplyRequestFlags(options.request, &base));
  if (model.tokenizer() == "none") base.mutable_output()->set_omit_text(true);
  // Synthetic lengths are meant exactly.
  if (options.prompts.empty()) base.mutable_stop()->set_ignore_eos(true);
  std::vector<v1::GenerateRequest> requests;
  for (const Prompt& prompt : prompts) {
    v1::GenerateRequest& request = requests.emplace_back(base);
    if (prompt.ids.empty()) {
      request.set_text(prompt.text);
    } else {
      request.mutable_token_ids()->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    }
    // A length given by flag wins over the prompt's own.
    if (prompt.max_new_tokens && !options.request.max_new_tokens) {
      request.mutable_stop()->set_max_new_tokens(*prompt.max_new_tokens);
    }
  }
  return requests;
}

absl::Status CheckPlan(const LoadOptions& options) {
  const LoadPlan& plan = options.plan;
  if (plan.requests == 0 && plan.duration_s <= 0) {
    return absl::InvalidArgumentError("one of --requests and --duration must be above 0");
  }
  if (!plan.rate_per_s && plan.concurrency == 0) {
    return absl::InvalidArgumentError("--concurrency: 0 (no limit) needs --rate");
  }
  return absl::OkStatus();
}

absl::Status NothingSucceeded(const LoadReport& report) {
  std::string codes;
  for (const auto& [code, count] : report.errors) absl::StrAppend(&codes, " ", code, " ", count);
  return absl::AbortedError(absl::StrCat("no request succeeded:", codes));
}

absl::Status WriteCalls(const std::string& path, const LoadOutcome& outcome) {
  std::ofstream file(path);
  for (const CallRecord& record : outcome.records) file << ToJson(record, outcome.start_ns).dump() << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("--calls-out: cannot write file '", path, "'"));
}

absl::Status Publish(const LoadOptions& options, const LoadReport& report,
                     const v1::ModelInfo& model) {
  nlohmann::json json = ToJson(report);
  json["model"] = model.name();
  json["target"] = options.connection.target;
  json["loop"] = options.plan.rate_per_s ? options.arrival : "closed";
  json["concurrency"] = options.plan.concurrency;
  if (options.json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s", ToTable(report).c_str());
  }
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << json.dump(1) << "\n";
    file.close();
    if (!file) {
      return absl::FailedPreconditionError(
          absl::StrCat("--json-out: cannot write file '", options.json_file, "'"));
    }
  }
  if (report.succeeded == 0) return NothingSucceeded(report);
  if (!report.invalid.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("run invalid: ", report.invalid.front()));
  }
  return absl::OkStatus();
}

void AddLoopFlags(CLI::App* command, LoadOptions* options) {
  const char* group = "Load";
  LoadPlan* plan = &options->plan;
  command
      ->add_option(
          "-c,--concurrency", plan->concurrency,
          "workers, each with one request in flight; after a refusal (RESOURCE_EXHAUSTED, "
          "UNAVAILABLE) a worker backs off: 10 ms, doubling to 1 s, jittered. With --rate: "
          "the most in flight (0 = no limit), never backing off")
      ->capture_default_str()
      ->group(group);
  command->add_option("--rate", plan->rate_per_s, "open loop: requests per second to offer")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command->add_option("--arrival", options->arrival, "open loop: constant or poisson")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "poisson"}))
      ->group(group);
  command->add_option("--requests", plan->requests, "send this many requests, 0 = no such limit")
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--duration", plan->duration_s, "send for this many seconds, 0 = no such limit")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  command->add_option("--warmup", plan->warmup, "requests before the run that are not measured")
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--drain", plan->drain_s,
                   "seconds to wait at the end for what is in flight, before cancelling it")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  command->add_option("--connections", options->connections, "TCP connections to spread calls over")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command
      ->add_option("--lag-limit", options->lag_limit_ms,
                   "open loop: p99 dispatch lag in ms above which the run is invalid")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
}

void AddPromptFlags(CLI::App* command, LoadOptions* options) {
  const char* group = "Prompts";
  command
      ->add_option("--prompts", options->prompts,
                   "file with a prompt per line, or JSON lines {\"text\" | \"token_ids\", "
                   "\"max_new_tokens\"}; - is standard input")
      ->group(group);
  command
      ->add_option("--prompt-tokens", options->prompt_tokens,
                   "synthetic prompt length: N or LOW:HIGH tokens")
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--output-tokens", options->output_tokens,
                   "synthetic output length: N or LOW:HIGH tokens")
      ->capture_default_str()
      ->group(group);
  command->add_option("--distinct", options->distinct, "synthetic prompts made; reused in turn")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command->add_option("--load-seed", options->plan.seed, "seed of synthetic prompts and arrivals")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

CLI::App* AddLoadCommand(CLI::App* app, LoadOptions* options) {
  CLI::App* command = app->add_subcommand("load", "Send a load and measure throughput and latency");
  AddLoopFlags(command, options);
  AddPromptFlags(command, options);
  command->add_flag("--json", options->json, "print JSON instead of the table");
  command->add_option("--json-out", options->json_file, "also write the JSON to this file");
  command->add_option("--calls-out", options->calls_file,
                      "also write a JSON line per measured call to this file, in order of their ends: request (its "
                      "number among the prompts, from 0), status, prompt_tokens, token_ids, sent_ms, end_ms and "
                      "token_ms, the times at which the ids came, since the run's start");
  command->add_flag("--no-progress", options->no_progress, "draw no progress bar");
  AddConnectionFlags(command, &options->connection);
  AddRequestFlags(command, &options->request);
  return command;
}

absl::Status RunLoad(LoadOptions options) {
  NS_RETURN_IF_ERROR(CheckPlan(options));
  options.plan.arrival =
      options.arrival == "poisson" ? ArrivalKind::kPoisson : ArrivalKind::kConstant;
  std::vector<std::unique_ptr<Stub>> stubs;
  std::vector<v1::GenerateRequest> requests;
  LoadRun run(options.connection, options.plan, stubs, requests);
  const InterruptWatch watch(&run);
  stubs = Connect(options.connection, options.connections);
  NS_ASSIGN_OR_RETURN(const v1::ModelInfo model,
                      FetchModel(stubs.front().get(), options.connection));
  NS_ASSIGN_OR_RETURN(requests, BuildRequests(options, model));
  absl::StatusOr<LoadOutcome> outcome;
  {
    ProgressBar bar(!options.no_progress && isatty(STDERR_FILENO) != 0);
    outcome = run.Run([&bar](const LoadRun::Progress& progress) {
      bar.Update(progress.fraction,
                 absl::StrFormat("%d done, %d in flight, %d tokens", progress.ended,
                                 progress.in_flight, progress.output_tokens),
                 NowNs());
    });
  }
  NS_RETURN_IF_ERROR(outcome.status());
  if (!options.calls_file.empty()) NS_RETURN_IF_ERROR(WriteCalls(options.calls_file, *outcome));
  return Publish(options, Report(options.plan, *outcome, options.lag_limit_ms), model);
}

}  // namespace normserve::client
