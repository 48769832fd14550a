// SPDX-License-Identifier: Apache-2.0
// The composition root: flags to objects. Everything that lives as long as the server is a local
// here, owned here, and destroyed in reverse order.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "app/device.h"
#include "app/inspect.h"
#include "app/machine.h"
#include "app/model_loader.h"
#include "app/options.h"
#include "app/ready_file.h"
#include "app/stop_signal.h"
#include "app/version.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "kernels/simd_target.h"
#include "metrics/device_metrics.h"
#include "metrics/exposer.h"
#include "metrics/model_metrics.h"
#include "rpc/server.h"

namespace normserve {
namespace {

// One model in service. The engine is last: it ends before what it uses.
struct ModelInService {
  app::Checkpoint checkpoint;
  std::unique_ptr<metrics::ModelMetrics> metrics;
  std::unique_ptr<engine::Engine> engine;
};

engine::EngineOptions EngineOptionsOf(const app::Options& options) {
  engine::EngineOptions out;
  out.max_step_tokens = options.max_step_tokens;
  out.max_mixed_step_tokens = options.max_mixed_step_tokens;
  out.max_running = options.max_running;
  out.max_waiting = options.max_waiting;
  out.max_waiting_tokens = options.max_waiting_tokens;
  out.prefix_cache = options.prefix_cache;
  out.draft_tokens = options.draft_tokens;
  return out;
}

// A line in the log as a large model arrives, at most one every few seconds.
app::LoadProgress LogProgress(const std::string& model, const base::Log& log) {
  return [&log, model, last = absl::Now()](int64_t layers, int64_t layer_count) mutable {
    if (layers < layer_count && absl::Now() - last < absl::Seconds(5)) return;
    last = absl::Now();
    log.Info("model_loading", {{"model", model}, {"layers", layers}, {"of", layer_count}});
  };
}

absl::StatusOr<ModelInService> LoadModel(const app::NamedModel& named, const app::Options& options,
                                         const app::Device& device, const app::Neighbours& neighbours,
                                         prometheus::Registry& registry, const base::Log& log) {
  ModelInService out;
  const absl::Time start = absl::Now();
  NS_ASSIGN_OR_RETURN(out.checkpoint,
                      app::LoadCheckpoint(named, options, device, LogProgress(named.name, log)));
  NS_ASSIGN_OR_RETURN(auto runner, app::MakeRunner(options, device, neighbours, &out.checkpoint));
  out.metrics = std::make_unique<metrics::ModelMetrics>(registry, named.name);
  out.engine =
      std::make_unique<engine::Engine>(named.name, EngineOptionsOf(options), std::move(runner),
                                       out.checkpoint.tokenizer.get(), out.metrics.get());
  const rpc::ModelCard& card = out.checkpoint.card;
  log.Info("model_loaded", {{"model", named.name},
                            {"dir", named.directory},
                            {"architecture", card.architecture},
                            {"norm_type", card.norm_type},
                            {"parameters", card.parameter_count},
                            {"device", card.device},
                            {"dtype", card.dtype},
                            {"quantization", card.quantization},
                            {"attention", options.attention},
                            {"kv_cache_dtype", card.kv_cache_dtype},
                            {"kv_cache_tokens", card.kv_cache_tokens},
                            {"kv_cache_bytes", card.kv_cache_bytes},
                            {"seconds", absl::ToDoubleSeconds(absl::Now() - start)}});
  if (card.kv_cache_tokens < out.engine->runner_info().max_context_tokens) {
    log.Warning("kv_cache_below_context",
                {{"model", named.name},
                 {"kv_cache_tokens", card.kv_cache_tokens},
                 {"max_context_tokens", out.engine->runner_info().max_context_tokens}});
  }
  for (const std::string& note : card.notes) {
    log.Warning("checkpoint_note", {{"model", named.name}, {"note", note}});
  }
  return out;
}

std::vector<rpc::ServedModel> ServedModels(const std::vector<ModelInService>& models) {
  std::vector<rpc::ServedModel> served;
  for (const ModelInService& model : models) {
    served.push_back({model.checkpoint.card, model.checkpoint.defaults, model.engine.get(),
                      model.checkpoint.tokenizer.get(), model.metrics.get()});
  }
  return served;
}

void DrainAll(const std::vector<ModelInService>& models, absl::Time deadline) {
  std::vector<std::thread> drains;
  for (const ModelInService& model : models) {
    drains.emplace_back([&model, deadline] { model.engine->Drain(deadline); });
  }
  for (std::thread& drain : drains) drain.join();
}

// Nothing where the device is the CPU, whose numbers are the process's.
std::shared_ptr<metrics::DeviceMetrics> MetricsOf(const app::Device& device) {
  const kernels::Accelerator* accelerator = device.accelerator.get();
  return std::make_shared<metrics::DeviceMetrics>(device.name(), [accelerator] {
    metrics::DeviceReading reading;
    if (accelerator == nullptr) return reading;
    const kernels::AcceleratorMemory memory = accelerator->Memory();
    reading.memory_total_bytes = memory.total_bytes;
    reading.memory_used_bytes = memory.total_bytes - memory.free_bytes;
    reading.utilization = accelerator->Utilization();
    return reading;
  });
}

// Which device serves, and why it is not the one that was hoped for.
void LogDevice(const app::Options& options, const app::Device& device, const base::Log& log) {
  if (device.accelerator != nullptr) {
    log.Info("device", {{"device", device.name()}, {"is", device.accelerator->description()}});
  } else if (!device.why_cpu.empty()) {
    log.Info("device", {{"device", "cpu"}, {"asked_for", options.device}, {"why", device.why_cpu}});
  }
}

absl::Status Serve(const app::Options& options, const app::Device& device, const base::Log& log) {
  app::StopSignal stop;
  if (!options.ready_file.empty()) app::RemoveReadyFile(options.ready_file);

  auto registry = std::make_shared<prometheus::Registry>();
  metrics::AddBuildInfo(*registry, app::BuildInfo());
  rpc::ModelTable table;
  std::vector<ModelInService> models;
  NS_ASSIGN_OR_RETURN(const auto exposer,
                      metrics::Exposer::Start(options.metrics_listen, {registry, MetricsOf(device)}));
  rpc::ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.log_prompts = options.log_prompts;
  for (const app::NamedModel& named : options.models) {
    server_options.model_names.push_back(named.name);
  }
  NS_ASSIGN_OR_RETURN(const auto server, rpc::Server::Start(server_options, &table, &log));
  log.Info("listening", {{"version", app::VersionLine()},
                         {"grpc_port", server->port()},
                         {"metrics_port", exposer->port()},
                         {"simd", kernels::SimdTargetName()}});
  LogDevice(options, device, log);

  app::Neighbours neighbours{0, options.models.size()};
  for (const app::NamedModel& named : options.models) {
    if (stop.Received()) return absl::OkStatus();
    --neighbours.to_come;
    NS_ASSIGN_OR_RETURN(ModelInService model,
                        LoadModel(named, options, device, neighbours, *registry, log));
    neighbours.promised_bytes += model.checkpoint.card.kv_cache_bytes;
    models.push_back(std::move(model));
  }
  table.Publish(ServedModels(models));
  server->SetServing();
  if (!options.ready_file.empty()) {
    NS_RETURN_IF_ERROR(app::WriteReadyFile(options.ready_file, server->port(), exposer->port()));
  }
  const app::ResidentBytes resident = app::ReadResidentBytes();
  log.Info("serving", {{"grpc_port", server->port()},
                       {"metrics_port", exposer->port()},
                       {"resident_bytes", resident.now},
                       {"peak_resident_bytes", resident.peak}});

  stop.Wait();
  log.Info("draining", {{"timeout_s", options.drain_timeout_seconds}});
  server->BeginDrain();
  const absl::Time deadline = absl::Now() + absl::Seconds(options.drain_timeout_seconds);
  DrainAll(models, deadline);
  // What the engines ended still has to reach its clients.
  server->Shutdown(std::max(deadline, absl::Now() + absl::Seconds(1)));
  log.Info("stopped");
  return absl::OkStatus();
}

absl::Status Check(const app::Options& options, const app::Device& device) {
  app::Neighbours neighbours{0, options.models.size()};
  for (const app::NamedModel& named : options.models) {
    --neighbours.to_come;
    NS_ASSIGN_OR_RETURN(app::Checkpoint checkpoint, app::LoadCheckpoint(named, options, device, {}));
    NS_RETURN_IF_ERROR(app::MakeRunner(options, device, neighbours, &checkpoint).status());
    neighbours.promised_bytes += checkpoint.card.kv_cache_bytes;
    std::fputs(app::CheckLine(checkpoint).c_str(), stdout);
  }
  std::fputs(absl::StrCat("all checks passed; would serve gRPC on ", options.listen,
                          " and metrics on ", options.metrics_listen, " (not opened by --check)\n")
                 .c_str(),
             stdout);
  return absl::OkStatus();
}

absl::Status Inspect(const app::Options& options, const app::Device& device) {
  NS_ASSIGN_OR_RETURN(const app::Checkpoint checkpoint,
                      app::LoadCheckpoint(options.models[0], options, device, {}));
  const std::string text =
      options.inspect_json ? app::InspectJson(checkpoint) : app::InspectTable(checkpoint);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Run(const app::Options& options, const base::Log& log) {
  NS_ASSIGN_OR_RETURN(const app::Device device, app::OpenDevice(options));
  if (!options.simd.empty() && !kernels::LimitSimdTarget(options.simd.c_str())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--simd (or NORMSERVE_SIMD) '", options.simd,
        "': no such target on this machine or in this build; allowed: ", kernels::SimdTargetList()));
  }
  if (!options.ready_file.empty()) NS_RETURN_IF_ERROR(app::CheckReadyFile(options.ready_file));
  switch (options.command) {
    case app::Command::kServe:
      return Serve(options, device, log);
    case app::Command::kCheck:
      return Check(options, device);
    case app::Command::kInspect:
      return Inspect(options, device);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace normserve

int main(int argc, char** argv) {
  normserve::app::GiveBackFreedMemory();
  const normserve::app::ParsedCommandLine parsed = normserve::app::ParseCommandLine(argc, argv);
  if (!parsed.options) {
    std::fputs(parsed.out.c_str(), stdout);
    if (!parsed.error.empty()) std::fprintf(stderr, "%s\n", parsed.error.c_str());
    return parsed.exit_code;
  }
  const normserve::base::Log log(parsed.options->log_level);
  const absl::Status status = normserve::Run(*parsed.options, log);
  if (status.ok()) return 0;
  const std::string message(status.message());
  if (parsed.options->command == normserve::app::Command::kServe) {
    log.Error("start_failed", {{"message", message}});
  }
  std::fprintf(stderr, "normserve: %s\n", message.c_str());
  return 1;
}
