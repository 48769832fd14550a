// SPDX-License-Identifier: Apache-2.0
// The forward pass over a loaded model.
#include "model/causal_lm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/large_pages.h"
#include "kernels/read_ahead.h"
#include "model/loader.h"

namespace normserve::model {
namespace {

at::Tensor Zeros(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) return kernels::ZerosInLargePages(sizes, dtype);
  return at::zeros(sizes, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

struct CausalLm::Impl {
  explicit Impl(LoadedModel loaded)
      : model(std::move(loaded)), scratch(model.scratch), read_ahead(kernels::MostReadAheadBytes()) {}

  void Embed(const StepInput& input);
  void PlanReadAhead(const StepInput& input, const KvCache& cache);
  at::Tensor Finish(const StepInput& input, const Probe* probe);
  Stream& Wanted(const StepInput& input) { return input.every_token ? scratch.tokens : scratch.wanted; }

  LoadedModel model;
  Scratch scratch;
  kernels::ReadAhead read_ahead;
};

CausalLm::CausalLm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CausalLm::~CausalLm() = default;

absl::StatusOr<std::unique_ptr<CausalLm>> CausalLm::Load(const std::string& directory,
                                                         const LoadOptions& options) {
  NS_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(directory, options));
  return std::unique_ptr<CausalLm>(new CausalLm(std::make_unique<Impl>(std::move(model))));
}

const ModelDescription& CausalLm::description() const { return impl_->model.description; }
const norm::NormPlan& CausalLm::norms() const { return impl_->model.plan; }

KvCache CausalLm::MakeCache(int64_t blocks, int64_t block_size, bool keys_by_position) const {
  const ModelDescription& d = description();
  const at::ScalarType dtype = impl_->model.cache_dtype;
  const at::Device device = impl_->model.scratch.device;
  KvCache cache;
  cache.blocks = blocks;
  cache.block_size = block_size;
  for (int64_t layer = 0; layer < d.layer_count; ++layer) {
    if (dtype == at::kChar) {
      const int64_t bytes = block_size * d.kv_bytes_per_token / (2 * d.layer_count * d.kv_heads);
      cache.keys.push_back(Zeros({blocks, d.kv_heads, bytes}, dtype, device));
      cache.values.push_back(Zeros({blocks, d.kv_heads, bytes}, dtype, device));
      continue;
    }
    const auto by_position = [&] { return Zeros({blocks, d.kv_heads, block_size, d.head_dim}, dtype, device); };
    cache.keys.push_back(keys_by_position ? by_position().transpose(2, 3)
                                          : Zeros({blocks, d.kv_heads, d.head_dim, block_size}, dtype, device));
    cache.values.push_back(by_position());
  }
  return cache;
}

void CausalLm::Reserve(int64_t tokens, int64_t rows) { impl_->scratch.Reserve(tokens, rows); }

void CausalLm::Impl::Embed(const StepInput& input) {
  Stream& s = scratch.tokens;
  at::Tensor& out = model.embed_out ? s.delta : s.residual;
  kernels::Embed(input.token_ids, model.embedding, model.embedding_scale, input.positions,
                 model.positions, out);
  if (model.embed_out) kernels::NormOp(s.delta, *model.embed_out, s.row_stat, s.residual);
  const kernels::OptionalNorm& first = model.layers.front().attn_in();
  if (first) kernels::NormOp(s.residual, *first, s.row_stat, s.normed);
}

at::Tensor CausalLm::Impl::Finish(const StepInput& input, const Probe* probe) {
  Stream& s = Wanted(input);
  if (!model.final) return s.residual;
  kernels::NormOp(s.residual, *model.final, s.row_stat, scratch.output);
  if (probe != nullptr) (*probe)("norm", scratch.output);
  return scratch.output;
}

void CausalLm::Impl::PlanReadAhead(const StepInput& input, const KvCache& cache) {
  const int64_t tokens = input.token_ids.size(0);
  kernels::ReadAheadStep step;
  // Wrong lengths are attention's to refuse.
  const bool readable = input.token_ids.is_cpu() && input.positions.numel() == tokens && input.token_sequence.numel() == tokens;
  if (!readable) return read_ahead.Plan(step);
  step.block_tables = input.block_tables.const_data_ptr<int32_t>();
  step.block_tables_stride = input.block_tables.stride(0);
  step.sequences = input.block_tables.size(0);
  step.max_blocks = input.block_tables.size(1);
  step.token_sequence = input.token_sequence.const_data_ptr<int32_t>();
  step.positions = input.positions.const_data_ptr<int32_t>();
  step.tokens = tokens;
  step.blocks = cache.blocks;
  step.block_size = cache.block_size;
  step.block_bytes = cache.keys.front().nbytes() / static_cast<size_t>(cache.blocks);
  read_ahead.Plan(step);
}

at::Tensor CausalLm::Forward(const StepInput& input, KvCache& cache, const Probe* probe) {
  Scratch& scratch = impl_->scratch;
  const std::vector<DecoderLayer>& layers = impl_->model.layers;
  scratch.Resize(input.token_ids.size(0), input.logits_rows.size(0));
  impl_->Embed(input);
  impl_->PlanReadAhead(input, cache);
  const kernels::ScopedReadAhead asks(&impl_->read_ahead);
  if (probe != nullptr) (*probe)("embed", scratch.tokens.residual);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const bool last = layer + 1 == layers.size();
    const LayerStep step{input, cache, impl_->model.cos_sin, scratch, probe, layer, last};
    // Its own were asked for while the layer before it ran.
    if (last) impl_->read_ahead.AimAtNothing();
    else impl_->read_ahead.Aim(cache.keys[layer + 1].const_data_ptr(), cache.values[layer + 1].const_data_ptr());
    layers[layer].Run(step, last ? kernels::OptionalNorm() : layers[layer + 1].attn_in());
    const Stream& stream = last ? impl_->Wanted(input) : scratch.tokens;
    if (probe != nullptr) (*probe)(absl::StrCat("hidden.", layer), stream.residual);
  }
  return impl_->Finish(input, probe);
}

void CausalLm::Logits(const at::Tensor& hidden, at::Tensor& logits) {
  kernels::Linear(hidden, impl_->model.head.weight, impl_->model.head.bias, logits);
}

}  // namespace normserve::model
