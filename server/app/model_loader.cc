// SPDX-License-Identifier: Apache-2.0
#include "app/model_loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
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
#include "kernels/kernel_plugin.h"
#include "norm/norm_plan.h"

namespace normserve::app {
namespace {

constexpr char kEmulatedDevice[] = "cuda-emulated";

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
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot be held in memory: ", what.substr(0, what.find('\n'))));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("cannot be held in memory: an allocation failed");
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--threads ", options.threads, ": the system gives no more threads: ", error.what()));
  }
}

model::Quantization QuantizationOf(const std::string& name) {
  if (name == "int8") return model::Quantization::kInt8;
  return name == "int4" ? model::Quantization::kInt4 : model::Quantization::kNone;
}

model::LoadOptions LoadOptionsOf(const Options& options, const std::string& name) {
  model::LoadOptions load;
  load.dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
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

absl::StatusOr<Checkpoint> Load(const NamedModel& named, const Options& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(named.directory, ignored)) {
    return absl::NotFoundError(absl::StrCat(named.directory, ": no such folder"));
  }
  Checkpoint out;
  NS_ASSIGN_OR_RETURN(out.defaults, LoadGenerationDefaults(named.directory));
  NS_ASSIGN_OR_RETURN(out.tokenizer, text::LoadTokenizer(named.directory));
  NS_ASSIGN_OR_RETURN(out.model,
                      model::CausalLm::Load(named.directory, LoadOptionsOf(options, named.name)));
  out.defaults.server_max_new_tokens = options.default_max_new_tokens;
  out.defaults.eos_token_ids = EosIds(out.model->description(), out.tokenizer.get());
  const bool emulated = options.device == kEmulatedDevice;
  out.card = CardOf(named.name, emulated ? kEmulatedDevice : "cpu", *out.model);
  return out;
}

absl::StatusOr<std::unique_ptr<engine::ModelRunner>> Make(const Options& options,
                                                          uint64_t promised_bytes,
                                                          Checkpoint* checkpoint) {
  const model::ModelDescription& description = checkpoint->model->description();
  CacheRequest cache;
  cache.tokens = options.kv_cache_tokens;
  cache.memory_bytes = options.kv_cache_memory_bytes;
  cache.bytes_per_token = static_cast<uint64_t>(description.kv_bytes_per_token);
  cache.block_size = options.block_size;
  cache.max_context_tokens = static_cast<uint64_t>(description.max_context_tokens);
  cache.max_running = options.max_running;
  const uint64_t free_bytes = FreeMemoryBytes();  // 0: not known
  const uint64_t least = std::min<uint64_t>(free_bytes, 1);
  cache.free_bytes = free_bytes > promised_bytes ? free_bytes - promised_bytes : least;
  engine::ModelRunnerOptions runner_options;
  runner_options.block_size = options.block_size;
  NS_ASSIGN_OR_RETURN(runner_options.blocks, CacheBlocks(cache));
  runner_options.threads = options.threads > 0 ? options.threads : UsableCores();
  checkpoint->card.kv_cache_tokens = uint64_t{runner_options.blocks} * options.block_size;
  checkpoint->card.kv_cache_bytes = checkpoint->card.kv_cache_tokens * cache.bytes_per_token;

  auto runner = std::make_unique<engine::ModelRunner>(std::move(checkpoint->model), runner_options);
  NS_RETURN_IF_ERROR(runner->Warmup());
  return runner;
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const NamedModel& named, const Options& options) {
  absl::StatusOr<Checkpoint> checkpoint =
      EndThrows(options, [&] { return Load(named, options); });
  if (!checkpoint.ok()) return Named(named.name, checkpoint.status());
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<engine::ModelRunner>> MakeRunner(const Options& options,
                                                                uint64_t promised_bytes,
                                                                Checkpoint* checkpoint) {
  absl::StatusOr<std::unique_ptr<engine::ModelRunner>> runner =
      EndThrows(options, [&] { return Make(options, promised_bytes, checkpoint); });
  if (!runner.ok()) return Named(checkpoint->card.name, runner.status());
  return runner;
}

absl::Status OpenDevice(const Options& options) {
  if (options.device == "cuda") {
    return absl::UnimplementedError(
        "--device cuda: this build cannot serve on a GPU yet; allowed: cpu, auto");
  }
  if (options.device != kEmulatedDevice) return absl::OkStatus();
  const absl::Status opened = kernels::OpenKernelPlugin("normserve_cuda_emulated.so");
  if (opened.ok()) return opened;
  return absl::Status(opened.code(), absl::StrCat("--device ", options.device, ": ", opened.message()));
}

}  // namespace normserve::app
