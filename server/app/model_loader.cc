// SPDX-License-Identifier: Apache-2.0
#include "app/model_loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "app/cache_size.h"
#include "app/generation_config.h"
#include "app/machine.h"
#include "base/status_macros.h"
#include "engine/device_runner.h"
#include "engine/model_runner.h"
#include "kernels/numa.h"
#include "norm/norm_plan.h"

namespace normserve::app {
namespace {

absl::Status Named(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("model '", name, "': ", status.message()));
}

// LibTorch and the standard library say by throwing that memory or threads ran out; this is where
// that ends.
template <typename Load>
auto EndThrows(const Options& options, const Load& load) -> decltype(load()) {
  try {
    return load();
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    const std::string line = what.substr(0, what.find('\n'));
    // Only a device's allocator has an exception of its own.
    const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                        line.find("memory") != std::string::npos;
    if (!memory) return absl::InternalError(absl::StrCat("LibTorch: ", line));
    return absl::ResourceExhaustedError(absl::StrCat("cannot be held in memory: ", line));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("cannot be held in memory: an allocation failed");
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--threads ", options.threads, ": the system gives no more threads: ", error.what()));
  }
}

model::Quantization QuantizationOf(const std::string& name) {
  if (name == "int8") return model::Quantization::kInt8;
  if (name == "fp8") return model::Quantization::kFloat8;
  return name == "int4" ? model::Quantization::kInt4 : model::Quantization::kNone;
}

model::LoadOptions LoadOptionsOf(const Options& options, const Device& device, const std::string& name) {
  model::LoadOptions load;
  const bool narrow = options.dtype == "bfloat16" || (options.dtype == "auto" && device.is_gpu());
  load.dtype = narrow ? at::kBFloat16 : at::kFloat;
  load.int8_cache = options.kv_cache_dtype == "int8";
  if (device.accelerator != nullptr) {
    load.device = device.accelerator->device();
    load.activations = load.dtype;
    load.batch_invariant = options.batch_invariant;
  }
  load.quantize = QuantizationOf(options.quantize);
  load.quantize_head = options.quantize_head != "auto" ? QuantizationOf(options.quantize_head)
                       : options.quantize != "none"     ? model::Quantization::kInt8
                                                        : model::Quantization::kNone;
  const auto norm_type = options.norm_types.find(name);
  if (norm_type != options.norm_types.end()) load.norm_type = norm_type->second;
  const auto seq_len = options.bhyt_seq_lens.find(name);
  if (seq_len != options.bhyt_seq_lens.end()) load.bhyt_seq_len = seq_len->second;
  load.fold = options.fold == "on"    ? model::LoadOptions::Fold::kOn
              : options.fold == "off" ? model::LoadOptions::Fold::kOff
                                      : model::LoadOptions::Fold::kAuto;
  return load;
}

// The union of what config, generation_config and tokenizer name; ids that the model cannot produce
// cannot end anything.
std::vector<uint32_t> EosIds(const model::ModelDescription& description,
                             const text::Tokenizer* tokenizer) {
  std::vector<uint32_t> ids = description.config_eos_token_ids;
  if (tokenizer != nullptr) {
    const std::vector<uint32_t> more = tokenizer->eos_ids();
    ids.insert(ids.end(), more.begin(), more.end());
  }
  ids.erase(std::remove_if(ids.begin(), ids.end(),
                           [&](uint32_t id) { return id >= description.vocab_size; }),
            ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<rpc::ModelCard::Norm> NormsOf(const norm::NormPlan& plan) {
  std::vector<rpc::ModelCard::Norm> out;
  const auto add = [&](std::optional<uint32_t> layer, norm::NormSite site,
                       const std::optional<norm::NormSpec>& spec) {
    if (!spec) return;
    out.push_back({layer, std::string(norm::NormSiteName(site)), norm::DescribeNorm(*spec)});
  };
  add(std::nullopt, norm::NormSite::embed_out, plan.embed_out);
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    for (size_t site = 0; site < norm::kLayerSites; ++site) {
      add(static_cast<uint32_t>(layer), static_cast<norm::NormSite>(site),
          plan.layers[layer].sites[site]);
    }
  }
  add(std::nullopt, norm::NormSite::final, plan.final);
  return out;
}

rpc::ModelCard CardOf(const std::string& name, const std::string& device,
                      const model::CausalLm& model) {
  const model::ModelDescription& description = model.description();
  rpc::ModelCard card;
  card.name = name;
  card.architecture = description.architecture;
  card.norm_type = description.norm_type;
  card.parameter_count = description.parameter_count;
  card.dtype = description.dtype;
  card.kv_cache_dtype = description.kv_cache_dtype;
  card.quantization = description.quantization;
  card.head_quantization = description.head_quantization;
  card.device = device;
  card.layer_count = static_cast<uint32_t>(description.layer_count);
  card.hidden_size = static_cast<uint32_t>(description.hidden_size);
  card.weight_bytes = description.weight_bytes;
  card.norms = NormsOf(model.norms());
  card.folded = model.norms().folded;
  card.notes = model.norms().notes;
  return card;
}

absl::Status CheckQuantization(const char* flag, const std::string& type, const Device& device) {
  const bool on_cpu = device.accelerator == nullptr;
  if (type != (on_cpu ? "fp8" : "int4")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", type, ": not on ", device.name(),
                                                 "; allowed there: none, int8, ", on_cpu ? "int4" : "fp8"));
}

absl::Status CheckCacheDtype(const Options& options, const Device& device) {
  if (options.kv_cache_dtype == "auto" || device.accelerator == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--kv-cache-dtype ", options.kv_cache_dtype, ": not on ",
                                                 device.name(), "; allowed there: auto"));
}

absl::Status CheckDeviceHasAttention(const Options& options, const Device& device) {
  if (options.attention == "own" || device.accelerator != nullptr) return absl::OkStatus();
  const std::string why = device.why_cpu.empty() ? "" : absl::StrCat(", which --device auto took: ", device.why_cpu);
  return absl::InvalidArgumentError(
      absl::StrCat("--attention ", options.attention, ": not on cpu", why, "; allowed there: own"));
}

absl::Status CheckAttention(const Options& options, const Device& device, const model::ModelDescription& model) {
  if (options.attention == "own") return absl::OkStatus();
  const at::ScalarType activations = model.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const std::string fault = device.accelerator->TileAttentionFault(activations, model.head_dim);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--attention ", options.attention, ": ", fault, "; --attention own takes every model"));
}

absl::StatusOr<Checkpoint> Load(const NamedModel& named, const Options& options, const Device& device,
                                const LoadProgress& progress) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(named.directory, ignored)) {
    return absl::NotFoundError(absl::StrCat(named.directory, ": no such folder"));
  }
  NS_RETURN_IF_ERROR(CheckQuantization("--quantize", options.quantize, device));
  NS_RETURN_IF_ERROR(CheckQuantization("--quantize-head", options.quantize_head, device));
  NS_RETURN_IF_ERROR(CheckCacheDtype(options, device));
  NS_RETURN_IF_ERROR(CheckDeviceHasAttention(options, device));
  if (device.accelerator != nullptr) device.accelerator->UseOnThisThread();
  Checkpoint out;
  NS_ASSIGN_OR_RETURN(out.defaults, LoadGenerationDefaults(named.directory));
  NS_ASSIGN_OR_RETURN(out.tokenizer, text::LoadTokenizer(named.directory));
  model::LoadOptions load = LoadOptionsOf(options, device, named.name);
  load.progress = progress;
  NS_ASSIGN_OR_RETURN(out.model, model::CausalLm::Load(named.directory, load));
  NS_RETURN_IF_ERROR(CheckAttention(options, device, out.model->description()));
  out.defaults.server_max_new_tokens = options.default_max_new_tokens;
  out.defaults.eos_token_ids = EosIds(out.model->description(), out.tokenizer.get());
  out.card = CardOf(named.name, device.name(), *out.model);
  return out;
}

CacheRequest CacheRequestOf(const Options& options, const model::ModelDescription& description) {
  CacheRequest cache;
  cache.tokens = options.kv_cache_tokens;
  cache.memory_bytes = options.kv_cache_memory_bytes;
  cache.bytes_per_token = static_cast<uint64_t>(description.kv_bytes_per_token);
  cache.block_size = options.block_size;
  cache.max_context_tokens = static_cast<uint64_t>(description.max_context_tokens);
  cache.max_running = options.max_running;
  return cache;
}

void PutOnCard(uint32_t blocks, const CacheRequest& cache, rpc::ModelCard* card) {
  card->kv_cache_tokens = uint64_t{blocks} * cache.block_size;
  card->kv_cache_bytes = card->kv_cache_tokens * cache.bytes_per_token;
}

absl::StatusOr<std::unique_ptr<engine::Runner>> MakeOnCpu(const Options& options, const Neighbours& neighbours,
                                                          Checkpoint* checkpoint) {
  CacheRequest cache = CacheRequestOf(options, checkpoint->model->description());
  ShareMainMemory(FreeMemoryBytes(), neighbours.promised_bytes, &cache);
  engine::ModelRunnerOptions runner;
  runner.block_size = options.block_size;
  NS_ASSIGN_OR_RETURN(runner.blocks, CacheBlocks(cache));
  runner.threads = options.threads > 0 ? options.threads : UsableCores();
  if (options.pin_threads) {
    runner.cpus = CpusToPin("/sys/devices/system/cpu", kernels::AllowedCpus());
    const size_t models_before = options.models.size() - 1 - neighbours.to_come;
    const size_t first = models_before * static_cast<size_t>(runner.threads) % std::max<size_t>(1, runner.cpus.size());
    std::rotate(runner.cpus.begin(), runner.cpus.begin() + static_cast<std::ptrdiff_t>(first), runner.cpus.end());
  }
  PutOnCard(runner.blocks, cache, &checkpoint->card);
  return std::make_unique<engine::ModelRunner>(std::move(checkpoint->model), runner);
}

absl::StatusOr<std::unique_ptr<engine::Runner>> MakeOnDevice(const Options& options,
                                                             kernels::Accelerator* accelerator,
                                                             size_t models_to_come,
                                                             Checkpoint* checkpoint) {
  const model::ModelDescription& description = checkpoint->model->description();
  engine::DeviceRunnerOptions runner;
  runner.block_size = options.block_size;
  runner.max_step_tokens = options.max_step_tokens;
  runner.tile_attention = options.attention == "flashinfer";
  if (options.batch_invariant) runner.row_multiple = model::kBatchInvariantRows;
  NS_RETURN_IF_ERROR(engine::DeviceRunner::CheckTileAttention(description, runner));
  CacheRequest cache = CacheRequestOf(options, description);
  // What the layers work in takes its memory before the cache does.
  checkpoint->model->Reserve(runner.StepRows(), runner.StepRows());
  accelerator->ReleaseUnused();
  const kernels::AcceleratorMemory memory = accelerator->Memory();
  if (memory.total_bytes > 0) {
    ShareDeviceMemory({memory.free_bytes, memory.total_bytes}, options.memory_fraction,
                      engine::DeviceRunner::BufferBytes(description, runner), models_to_come, &cache);
  } else {
    ShareMainMemory(FreeMemoryBytes(), 0, &cache);
  }
  NS_ASSIGN_OR_RETURN(runner.blocks, CacheBlocks(cache));
  PutOnCard(runner.blocks, cache, &checkpoint->card);
  return std::make_unique<engine::DeviceRunner>(std::move(checkpoint->model), accelerator, runner);
}

absl::StatusOr<std::unique_ptr<engine::Runner>> Make(const Options& options, const Device& device,
                                                     const Neighbours& neighbours, Checkpoint* checkpoint) {
  NS_ASSIGN_OR_RETURN(std::unique_ptr<engine::Runner> runner,
                      device.accelerator == nullptr
                          ? MakeOnCpu(options, neighbours, checkpoint)
                          : MakeOnDevice(options, device.accelerator.get(), neighbours.to_come, checkpoint));
  NS_RETURN_IF_ERROR(engine::WarmUp(*runner));
  return runner;
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const NamedModel& named, const Options& options,
                                          const Device& device, const LoadProgress& progress) {
  absl::StatusOr<Checkpoint> checkpoint =
      EndThrows(options, [&] { return Load(named, options, device, progress); });
  if (!checkpoint.ok()) return Named(named.name, checkpoint.status());
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<engine::Runner>> MakeRunner(const Options& options, const Device& device,
                                                           const Neighbours& neighbours,
                                                           Checkpoint* checkpoint) {
  absl::StatusOr<std::unique_ptr<engine::Runner>> runner =
      EndThrows(options, [&] { return Make(options, device, neighbours, checkpoint); });
  if (!runner.ok()) return Named(checkpoint->card.name, runner.status());
  return runner;
}

}  // namespace normserve::app
