// SPDX-License-Identifier: Apache-2.0
// The name maps, one function per family.
#include "model/tensor_names.h"

namespace normserve::model {
namespace {

using norm::NormSite;

std::string& Site(TensorNames& names, NormSite site) {
  return names.norms.layer[static_cast<size_t>(site)];
}

TensorNames Llama(const std::string& norm_type) {
  TensorNames names;
  names.embedding = "model.embed_tokens";
  names.head = "lm_head";
  names.shared_scale = "model.shared_scale";
  names.layer_prefix = "model.layers.{}.";
  names.qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  names.attn_out = "self_attn.o_proj";
  names.gate_up = {"mlp.gate_proj", "mlp.up_proj"};
  names.mlp_out = "mlp.down_proj";
  names.norms.final = "model.norm";
  Site(names, NormSite::attn_in) = "input_layernorm";
  if (norm_type == "peri") {  // the names of Gemma-2
    Site(names, NormSite::attn_out) = "post_attention_layernorm";
    Site(names, NormSite::mlp_in) = "pre_feedforward_layernorm";
    Site(names, NormSite::mlp_out) = "post_feedforward_layernorm";
    names.norms.embed_out = "model.embed_layernorm";
  } else {
    Site(names, NormSite::mlp_in) = "post_attention_layernorm";
  }
  names.ignored_suffixes = {"rotary_emb.inv_freq", ".c_attn"};
  return names;
}

TensorNames Torchtitan(Architecture architecture) {
  TensorNames names;
  names.embedding = "tok_embeddings";
  names.head = "output";
  names.layer_prefix = "layers.{}.";
  names.norms.final = "norm";
  names.ignored_suffixes = {"freqs_cis"};
  if (architecture == Architecture::kSimpleGpt) {
    names.qkv = {"attention.snq.lin", "attention.snk.lin", "attention.snv.lin"};
    names.attn_out = "attention.sno.lin";
    names.gate_up = {"feed_forward.sn1.lin", "feed_forward.sn3.lin"};
    names.mlp_out = "feed_forward.sn2.lin";
    Site(names, NormSite::q) = "attention.snq.norm";
    Site(names, NormSite::k) = "attention.snk.norm";
    Site(names, NormSite::v) = "attention.snv.norm";
    Site(names, NormSite::attn_out) = "attention.sno.norm";
    Site(names, NormSite::gate) = "feed_forward.sn1.norm";
    Site(names, NormSite::up) = "feed_forward.sn3.norm";
    Site(names, NormSite::mlp_out) = "feed_forward.sn2.norm";
    return names;
  }
  names.qkv = {"attention.wq", "attention.wk", "attention.wv"};
  names.attn_out = "attention.wo";
  names.gate_up = {"feed_forward.w1", "feed_forward.w3"};
  names.mlp_out = "feed_forward.w2";
  Site(names, NormSite::attn_in) = "attention_norm";
  Site(names, NormSite::mlp_in) = "ffn_norm";
  if (architecture == Architecture::kPreQkNorm) {
    Site(names, NormSite::q) = "attention.q_norm";
    Site(names, NormSite::k) = "attention.k_norm";
  }
  return names;
}

TensorNames NanoGpt(bool simple) {
  TensorNames names;
  names.embedding = "transformer.wte";
  names.positions = "transformer.wpe";
  names.head = "lm_head";
  names.layer_prefix = "transformer.h.{}.";
  names.norms.final = "transformer.ln_f";
  names.ignored_suffixes = {".attn.bias", ".attn.masked_bias"};  // causal masks of old checkpoints
  if (!simple) {
    names.qkv = {"attn.c_attn"};
    names.attn_out = "attn.c_proj";
    names.gate_up = {"mlp.c_fc"};
    names.mlp_out = "mlp.c_proj";
    Site(names, NormSite::attn_in) = "ln_1";
    Site(names, NormSite::mlp_in) = "ln_2";
    return names;
  }
  names.qkv = {"attn.q.lin", "attn.k.lin", "attn.v.lin"};
  names.attn_out = "attn.c_proj.lin";
  names.gate_up = {"mlp.c_fc.lin"};
  names.mlp_out = "mlp.c_proj.lin";
  Site(names, NormSite::q) = "attn.q.norm";
  Site(names, NormSite::k) = "attn.k.norm";
  Site(names, NormSite::v) = "attn.v.norm";
  Site(names, NormSite::attn_out) = "attn.c_proj.norm";
  Site(names, NormSite::gate) = "mlp.c_fc.norm";
  Site(names, NormSite::mlp_out) = "mlp.c_proj.norm";
  return names;
}

}  // namespace

TensorNames NamesOf(Architecture architecture, const std::string& norm_type) {
  switch (architecture) {
    case Architecture::kLlama: return Llama(norm_type);
    case Architecture::kNanoGpt: return NanoGpt(/*simple=*/false);
    case Architecture::kSimpleNanoGpt: return NanoGpt(/*simple=*/true);
    case Architecture::kSimpleGpt:
    case Architecture::kPreNorm:
    case Architecture::kPreQkNorm: break;
  }
  return Torchtitan(architecture);
}

norm::Family FamilyOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama: return norm::Family::kLlama;
    case Architecture::kNanoGpt: return norm::Family::kNanoGpt;
    case Architecture::kSimpleNanoGpt: return norm::Family::kSimpleNanoGpt;
    case Architecture::kSimpleGpt:
    case Architecture::kPreNorm:
    case Architecture::kPreQkNorm: break;
  }
  return norm::Family::kTorchtitan;
}

}  // namespace normserve::model
