// SPDX-License-Identifier: Apache-2.0
// Loading, in this order: config, norm plan (with the constants that need unfolded weights), then layer
// by layer read, fold, pack, so that at most one layer is held twice.
#include "model/loader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/tensor_names.h"
#include "norm/fold.h"
#include "norm/freeze.h"
#include "norm/strategies.h"

namespace normserve::model {
namespace {

using norm::NormSite;

// Undefined tensors stay undefined.
at::Tensor OnDevice(const at::Tensor& t, at::Device device) { return t.defined() ? t.to(device) : t; }

std::string DtypeName(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kChar) return "int8";
  return dtype == at::kHalf ? "float16" : "float32";
}

std::string QuantizationName(Quantization quantize) {
  if (quantize == Quantization::kInt8) return "int8";
  if (quantize == Quantization::kFloat8) return "fp8";
  return quantize == Quantization::kInt4 ? "int4" : "none";
}

class Loader {
 public:
  Loader(const LoadOptions& options, ModelConfig config, std::unique_ptr<Checkpoint> checkpoint)
      : options_(options), config_(std::move(config)), checkpoint_(std::move(checkpoint)) {}

  absl::StatusOr<LoadedModel> Load();

 private:
  norm::NormInputs MakeNormInputs() const;
  absl::Status DecideFolding();
  absl::StatusOr<norm::FoldableLinear> ReadLinear(const std::vector<std::string>& modules,
                                                  const std::vector<int64_t>& rows, int64_t columns,
                                                  bool bias);
  absl::StatusOr<norm::FoldableLayer> ReadLayer(int64_t layer);
  absl::Status LoadEmbedding();
  absl::Status LoadLayers(const norm::NormInputs& inputs);
  absl::Status LoadHead();
  void AddLayer(const norm::LayerNorms& norms, const norm::FoldableLayer& linears);
  kernels::PackedWeight Pack(const at::Tensor& weight, Quantization quantize,
                             kernels::WeightUse use = kernels::WeightUse::kLinear);
  PackedLinear Pack(const norm::FoldableLinear& linear, Quantization quantize,
                    kernels::WeightUse use = kernels::WeightUse::kLinear);
  kernels::OptionalNorm OpOf(const std::optional<norm::NormSpec>& spec) const;
  void CountNorm(const std::optional<norm::NormSpec>& spec);
  void Describe();

  bool IsNanoGpt() const { return config_.rope.type == RopeType::kNone; }
  kernels::RotaryPairs Pairs() const;

  const LoadOptions& options_;
  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  TensorNames names_;
  bool fold_ = false;
  uint64_t weight_bytes_ = 0;
  LoadedModel model_;
};

kernels::RotaryPairs Loader::Pairs() const {
  if (IsNanoGpt()) return kernels::RotaryPairs::kNone;
  // MATCHES: torchtitan rotates neighbours (2i, 2i + 1), Hugging Face Llama halves (i, i + D/2).
  return config_.architecture == Architecture::kLlama ? kernels::RotaryPairs::kHalfSplit
                                                      : kernels::RotaryPairs::kInterleaved;
}

norm::NormInputs Loader::MakeNormInputs() const {
  norm::NormInputs inputs;
  inputs.family = FamilyOf(config_.architecture);
  inputs.norm_type = config_.norm_type;
  inputs.config_file = config_.file;
  inputs.layers = config_.layers;
  inputs.hidden = config_.hidden;
  inputs.heads = config_.heads;
  inputs.kv_heads = config_.kv_heads;
  inputs.head_dim = config_.head_dim;
  inputs.ffn = config_.ffn;
  inputs.eps = config_.norm_eps;
  inputs.layer_norm_bias = config_.layer_norm_bias;
  inputs.bhyt = config_.bhyt;
  inputs.names = names_.norms;
  inputs.layer_prefix = names_.layer_prefix;
  inputs.value_weight = names_.qkv.back() + ".weight";
  inputs.output_weight = names_.attn_out + ".weight";
  inputs.tensors = checkpoint_.get();
  return inputs;
}

kernels::OptionalNorm Loader::OpOf(const std::optional<norm::NormSpec>& spec) const {
  if (!spec) return std::nullopt;
  kernels::Norm norm = spec->op;
  norm.gamma = OnDevice(norm.gamma, options_.device);
  norm.beta = OnDevice(norm.beta, options_.device);
  return norm;
}

// The parts of one fused weight, stacked. Equal 16-bit dtypes stay as stored.
absl::StatusOr<norm::FoldableLinear> Loader::ReadLinear(const std::vector<std::string>& modules,
                                                        const std::vector<int64_t>& rows,
                                                        int64_t columns, bool bias) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  bool same = true;
  for (size_t i = 0; i < modules.size(); ++i) {
    NS_ASSIGN_OR_RETURN(at::Tensor weight,
                        checkpoint_->TakeWeight(modules[i] + ".weight", rows[i], columns));
    same = same && (weights.empty() || weights[0].scalar_type() == weight.scalar_type());
    weights.push_back(std::move(weight));
    if (bias) {
      NS_ASSIGN_OR_RETURN(at::Tensor b, checkpoint_->Parameter(modules[i] + ".bias", {rows[i]}));
      biases.push_back(std::move(b));
    }
  }
  if (!same) {
    for (at::Tensor& weight : weights) weight = weight.to(at::kFloat);
  }
  norm::FoldableLinear linear;
  linear.weight = weights.size() == 1 ? weights[0] : at::cat(weights, 0);
  if (bias) linear.bias = biases.size() == 1 ? biases[0] : at::cat(biases, 0);
  return linear;
}

absl::StatusOr<norm::FoldableLayer> Loader::ReadLayer(int64_t layer) {
  const std::string prefix = norm::LayerPrefix(MakeNormInputs(), layer);
  const auto full = [&](const std::vector<std::string>& modules) {
    std::vector<std::string> names;
    for (const std::string& module : modules) names.push_back(prefix + module);
    return names;
  };
  const int64_t q = config_.heads * config_.head_dim;
  const int64_t kv = config_.kv_heads * config_.head_dim;
  const std::vector<int64_t> qkv_rows =
      names_.qkv.size() == 1 ? std::vector<int64_t>{q + 2 * kv} : std::vector<int64_t>{q, kv, kv};
  const std::vector<int64_t> ffn_rows(names_.gate_up.size(), config_.ffn);
  norm::FoldableLayer linears;
  NS_ASSIGN_OR_RETURN(linears.qkv, ReadLinear(full(names_.qkv), qkv_rows, config_.hidden,
                                              config_.attention_bias));
  NS_ASSIGN_OR_RETURN(linears.attn_out, ReadLinear(full({names_.attn_out}), {config_.hidden}, q,
                                                   config_.attention_bias));
  NS_ASSIGN_OR_RETURN(linears.gate_up, ReadLinear(full(names_.gate_up), ffn_rows, config_.hidden,
                                                  config_.mlp_bias));
  NS_ASSIGN_OR_RETURN(linears.mlp_out, ReadLinear(full({names_.mlp_out}), {config_.hidden},
                                                  config_.ffn, config_.mlp_bias));
  return linears;
}

// 16-bit weights stay so under float32 activations (float16 ones where the device has kernels for them): widening them
// on read gives the same bits for half the memory. Everything else is packed as --dtype says; under bfloat16 inputs may
// be rounded, too (docs/adr/0026).
kernels::WeightFormat FormatOf(const at::Tensor& weight, const LoadOptions& options, Quantization quantize) {
  if (quantize == Quantization::kInt8) return kernels::WeightFormat::kInt8;
  if (quantize == Quantization::kInt4) return kernels::WeightFormat::kInt4;
  if (quantize == Quantization::kFloat8) return kernels::WeightFormat::kFloat8;
  if (options.dtype == at::kBFloat16) return kernels::WeightFormat::kBFloat16Dot;
  if (weight.scalar_type() == at::kBFloat16) return kernels::WeightFormat::kBFloat16;
  const bool half = weight.scalar_type() == at::kHalf;
  return half ? kernels::WeightFormat::kFloat16 : kernels::WeightFormat::kFloat32;
}

kernels::PackedWeight Loader::Pack(const at::Tensor& weight, Quantization quantize, kernels::WeightUse use) {
  kernels::PackedWeight packed =
      kernels::PackWeight(weight.to(options_.device), FormatOf(weight, options_, quantize), use);
  if (options_.batch_invariant) packed.rows_per_product = kBatchInvariantRows;
  weight_bytes_ += static_cast<uint64_t>(packed.panels.nbytes());
  return packed;
}

PackedLinear Loader::Pack(const norm::FoldableLinear& linear, Quantization quantize, kernels::WeightUse use) {
  if (linear.bias.defined()) weight_bytes_ += static_cast<uint64_t>(linear.bias.nbytes());
  return {Pack(linear.weight, quantize, use), OnDevice(linear.bias, options_.device)};
}

absl::Status Loader::LoadEmbedding() {
  NS_ASSIGN_OR_RETURN(const at::Tensor table,
                      checkpoint_->TakeWeight(names_.embedding + ".weight", config_.vocab,
                                              config_.hidden));
  model_.embedding = Pack(table, options_.quantize_head);
  checkpoint_->ReleasePages();
  if (!names_.positions.empty()) {
    NS_ASSIGN_OR_RETURN(model_.positions,
                        checkpoint_->Parameter(names_.positions + ".weight",
                                               {config_.max_positions, config_.hidden}));
    model_.positions = model_.positions.to(options_.device);
    weight_bytes_ += static_cast<uint64_t>(model_.positions.nbytes());
  }
  // DyT's Llama has an optional scalar after the embedding; the BHyT code's switch is in its config.
  const bool optional_scale =
      config_.norm_type == "dyt" && checkpoint_->Has(names_.shared_scale);
  if (config_.use_shared_scale || optional_scale) {
    NS_ASSIGN_OR_RETURN(model_.embedding_scale, checkpoint_->Scalar(names_.shared_scale));
  }
  return absl::OkStatus();
}

void Loader::CountNorm(const std::optional<norm::NormSpec>& spec) {
  if (!spec) return;
  if (spec->op.gamma.defined()) weight_bytes_ += static_cast<uint64_t>(spec->op.gamma.nbytes());
  if (spec->op.beta.defined()) weight_bytes_ += static_cast<uint64_t>(spec->op.beta.nbytes());
}

void Loader::AddLayer(const norm::LayerNorms& norms, const norm::FoldableLayer& linears) {
  Attention::Parts attention;
  attention.qkv = Pack(linears.qkv, options_.quantize);
  attention.out = Pack(linears.attn_out, options_.quantize);
  attention.norms = {OpOf(norms.at(NormSite::q)), OpOf(norms.at(NormSite::k)),
                     OpOf(norms.at(NormSite::v))};
  attention.pairs = Pairs();
  attention.shape.heads = config_.heads;
  attention.shape.kv_heads = config_.kv_heads;
  attention.shape.head_dim = config_.head_dim;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  Mlp::Parts mlp;
  mlp.gate = OpOf(norms.at(NormSite::gate));
  mlp.up = OpOf(norms.at(NormSite::up));
  mlp.activation = names_.gate_up.size() == 2 ? kernels::Activation::kSiluGate
                                              : kernels::Activation::kGeluErf;
  mlp.gate_in_one = mlp.activation == kernels::Activation::kSiluGate && !mlp.gate && !mlp.up;
  mlp.gate_up = Pack(linears.gate_up, options_.quantize,
                     mlp.gate_in_one ? kernels::WeightUse::kGate : kernels::WeightUse::kLinear);
  mlp.out = Pack(linears.mlp_out, options_.quantize);
  for (const std::optional<norm::NormSpec>& spec : norms.sites) CountNorm(spec);
  model_.layers.emplace_back(
      Attention(std::move(attention)), Mlp(std::move(mlp)),
      DecoderLayer::Norms{OpOf(norms.at(NormSite::attn_in)), OpOf(norms.at(NormSite::attn_out)),
                          OpOf(norms.at(NormSite::mlp_in)), OpOf(norms.at(NormSite::mlp_out))});
}

absl::Status Loader::LoadLayers(const norm::NormInputs& inputs) {
  const norm::HeadShape heads{config_.heads, config_.kv_heads, config_.head_dim};
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    norm::LayerNorms& norms = model_.plan.layers[static_cast<size_t>(layer)];
    NS_ASSIGN_OR_RETURN(norm::FoldableLayer linears, ReadLayer(layer));
    if (fold_) norm::FoldLayer(layer, heads, Pairs(), norms, linears, model_.plan.folded);
    NS_RETURN_IF_ERROR(norm::FreezeLayer(inputs, layer, norms));
    AddLayer(norms, linears);
    linears = {};  // views into the file
    checkpoint_->ReleasePages();
    if (options_.progress) options_.progress(layer + 1, config_.layers);
  }
  return absl::OkStatus();
}

// MATCHES: with tied embeddings a head in the file is redundant and not read.
absl::Status Loader::LoadHead() {
  const std::string name = names_.head + ".weight";
  if (config_.tied_head) {
    NS_RETURN_IF_ERROR(checkpoint_->Ignore(name, {config_.vocab, config_.hidden}));
    model_.head.weight = model_.embedding;
    return absl::OkStatus();
  }
  norm::FoldableLinear head;
  NS_ASSIGN_OR_RETURN(head.weight, checkpoint_->TakeWeight(name, config_.vocab, config_.hidden));
  if (fold_) norm::FoldFinal(model_.plan.final, head, model_.plan.folded);
  model_.head = Pack(head, options_.quantize_head);
  return absl::OkStatus();
}

absl::Status Loader::DecideFolding() {
  const std::string first = norm::LayerPrefix(MakeNormInputs(), 0) + names_.qkv[0] + ".weight";
  const int64_t q = config_.heads * config_.head_dim;
  const int64_t kv = config_.kv_heads * config_.head_dim;
  NS_ASSIGN_OR_RETURN(const at::Tensor weight,
                      checkpoint_->LinearWeight(first, names_.qkv.size() == 1 ? q + 2 * kv : q,
                                                config_.hidden));
  model_.description.checkpoint_dtype = DtypeName(weight.scalar_type());
  fold_ = options_.fold == LoadOptions::Fold::kOn ||
          (options_.fold == LoadOptions::Fold::kAuto && weight.scalar_type() == at::kFloat);
  return absl::OkStatus();
}

void Loader::Describe() {
  ModelDescription& d = model_.description;
  d.architecture = ArchitectureName(config_.architecture);
  d.norm_type = config_.norm_type;
  d.parameter_count = checkpoint_->consumed_elements();
  d.weight_bytes = weight_bytes_;
  d.vocab_size = config_.vocab;
  d.hidden_size = config_.hidden;
  d.layer_count = config_.layers;
  d.heads = config_.heads;
  d.kv_heads = config_.kv_heads;
  d.head_dim = config_.head_dim;
  d.max_context_tokens = config_.max_positions;
  // Under float32 activations, which are the CPU's, a bfloat16 cache lies by pairs of dimensions.
  const bool by_pairs = options_.dtype == at::kBFloat16 && options_.activations == at::kFloat;
  model_.cache_dtype = by_pairs && config_.head_dim % 2 != 0 ? at::kFloat : options_.dtype;
  if (options_.int8_cache) model_.cache_dtype = at::kChar;
  d.kv_cache_dtype = DtypeName(model_.cache_dtype);
  const int64_t scale_bytes = options_.int8_cache ? 4 : 0;
  const int64_t head_bytes = config_.head_dim * static_cast<int64_t>(at::elementSize(model_.cache_dtype)) + scale_bytes;
  d.kv_bytes_per_token = 2 * config_.layers * config_.kv_heads * head_bytes;
  d.dtype = DtypeName(options_.dtype);
  d.quantization = QuantizationName(options_.quantize);
  d.head_quantization = QuantizationName(options_.quantize_head);
  d.config_eos_token_ids = config_.eos_token_ids;
  d.bos_token_id = config_.bos_token_id;
}

absl::StatusOr<LoadedModel> Loader::Load() {
  names_ = NamesOf(config_.architecture, config_.norm_type);
  const norm::NormInputs inputs = MakeNormInputs();
  NS_ASSIGN_OR_RETURN(model_.plan, norm::PlanNorms(inputs));
  NS_RETURN_IF_ERROR(DecideFolding());
  NS_RETURN_IF_ERROR(LoadEmbedding());
  NS_RETURN_IF_ERROR(LoadLayers(inputs));
  NS_RETURN_IF_ERROR(LoadHead());
  NS_RETURN_IF_ERROR(norm::FreezeModelNorms(inputs, model_.plan));
  CountNorm(model_.plan.embed_out);
  CountNorm(model_.plan.final);
  model_.embed_out = OpOf(model_.plan.embed_out);
  model_.final = OpOf(model_.plan.final);
  NS_RETURN_IF_ERROR(checkpoint_->CheckAllUsed(
      names_.ignored_suffixes, absl::StrCat("architecture ", ArchitectureName(config_.architecture),
                                            " with norm_type ", config_.norm_type)));
  model_.cos_sin = MakeRopeTable(config_.rope, config_.head_dim, config_.max_positions);
  // MATCHES: transformers rounds the table to its activation dtype, torchtitan does not. The error is
  // the same for every token, so that following it brings 16-bit results visibly nearer.
  if (options_.dtype == at::kBFloat16 && config_.architecture == Architecture::kLlama) {
    model_.cos_sin = model_.cos_sin.to(at::kBFloat16).to(at::kFloat);
  }
  const int64_t q = config_.heads * config_.head_dim;
  const int64_t kv = config_.kv_heads * config_.head_dim;
  const int64_t projections = static_cast<int64_t>(names_.gate_up.size());
  model_.cos_sin = OnDevice(model_.cos_sin, options_.device);
  // DIFFERS: on a CPU activations stay float32 under --dtype bfloat16 (docs/adr/0019): they cost nothing beside
  // the weights, and each rounding that is left out brings results nearer to the exact ones. On a GPU they are
  // bfloat16, as the authors' are.
  model_.scratch = {config_.hidden, q + 2 * kv, q, projections * config_.ffn, config_.ffn,
                    options_.activations, options_.device};
  Describe();
  return std::move(model_);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options) {
  if (options.dtype != at::kFloat && options.dtype != at::kBFloat16) {
    return absl::InvalidArgumentError("dtype: allowed: float32, bfloat16");
  }
  NS_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  if (options.int8_cache && config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-cache-dtype is \"int8\", which takes an even head_dim; this "
                                                   "model's is ", config.head_dim, "; allowed for it: auto"));
  }
  if (options.norm_type) {
    const norm::Family family = FamilyOf(config.architecture);
    if (!norm::IsKnownNormType(family, *options.norm_type)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--norm-type is \"", *options.norm_type, "\"; allowed for architecture ",
                       ArchitectureName(config.architecture), ": ", norm::KnownNormTypes(family)));
    }
    config.norm_type = *options.norm_type;
  }
  if (options.bhyt_seq_len) {
    if (*options.bhyt_seq_len < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--bhyt-seq-len is ", *options.bhyt_seq_len, "; allowed: an integer >= 1"));
    }
    config.bhyt.seq_len = options.bhyt_seq_len;
  }
  NS_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  return Loader(options, std::move(config), std::move(checkpoint)).Load();
}

}  // namespace normserve::model
