// SPDX-License-Identifier: Apache-2.0
#include "rpc/model_info.h"

#include <string>

namespace normserve::rpc {

void DescribeModel(const ServedModel& model, v1::ModelInfo* out) {
  const ModelCard& card = model.card;
  const engine::RunnerInfo& limits = model.engine->runner_info();
  out->set_name(card.name);
  out->set_architecture(card.architecture);
  out->set_norm_type(card.norm_type);
  out->set_parameter_count(card.parameter_count);
  out->set_dtype(card.dtype);
  out->set_quantization(card.quantization);
  out->set_head_quantization(card.head_quantization);
  out->set_device(card.device);
  out->set_vocab_size(limits.vocab_size);
  out->set_max_context_tokens(limits.max_context_tokens);
  out->set_layer_count(card.layer_count);
  out->set_hidden_size(card.hidden_size);
  out->set_weight_bytes(card.weight_bytes);
  out->set_kv_cache_bytes(card.kv_cache_bytes);
  out->set_kv_cache_tokens(card.kv_cache_tokens);
  out->set_tokenizer(model.tokenizer == nullptr ? "none" : std::string(model.tokenizer->kind()));
  for (const uint32_t id : model.defaults.eos_token_ids) out->add_eos_token_ids(id);
  for (const ModelCard::Norm& norm : card.norms) {
    v1::NormSite* site = out->add_norms();
    if (norm.layer) site->set_layer(*norm.layer);
    site->set_site(norm.site);
    site->set_norm(norm.norm);
  }
  for (const std::string& line : card.folded) out->add_folded(line);
  for (const std::string& line : card.notes) out->add_notes(line);
}

}  // namespace normserve::rpc
