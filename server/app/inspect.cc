// SPDX-License-Identifier: Apache-2.0
#include "app/inspect.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "app/byte_size.h"

namespace normserve::app {
namespace {

using Json = nlohmann::ordered_json;

std::string TokenizerKind(const Checkpoint& checkpoint) {
  return checkpoint.tokenizer == nullptr ? "none" : std::string(checkpoint.tokenizer->kind());
}

uint64_t ContextBytes(const model::ModelDescription& description) {
  return static_cast<uint64_t>(description.kv_bytes_per_token * description.max_context_tokens);
}

void Row(std::string* out, const char* key, const std::string& value) {
  absl::StrAppendFormat(out, "%-20s %s\n", key, value);
}

void NormRows(std::string* out, const rpc::ModelCard& card) {
  absl::StrAppend(out, "norms\n");
  for (const rpc::ModelCard::Norm& norm : card.norms) {
    const std::string layer = norm.layer ? absl::StrCat("layer ", *norm.layer) : "model";
    absl::StrAppendFormat(out, "  %-9s %-9s %s\n", layer, norm.site, norm.norm);
  }
}

void ListRows(std::string* out, const char* key, const std::vector<std::string>& lines) {
  absl::StrAppend(out, key, lines.empty() ? " none\n" : "\n");
  for (const std::string& line : lines) absl::StrAppend(out, "  ", line, "\n");
}

}  // namespace

std::string InspectTable(const Checkpoint& checkpoint) {
  const model::ModelDescription& d = checkpoint.model->description();
  std::string out;
  Row(&out, "architecture", d.architecture);
  Row(&out, "norm type", d.norm_type);
  Row(&out, "parameters", absl::StrCat(d.parameter_count));
  Row(&out, "checkpoint dtype", d.checkpoint_dtype);
  Row(&out, "dtype", d.dtype);
  Row(&out, "quantization", absl::StrCat(d.quantization, ", embedding and head ", d.head_quantization));
  Row(&out, "layers", absl::StrCat(d.layer_count));
  Row(&out, "hidden size", absl::StrCat(d.hidden_size));
  Row(&out, "heads", absl::StrCat(d.heads, " (key/value ", d.kv_heads, ", of ", d.head_dim, ")"));
  Row(&out, "vocabulary", absl::StrCat(d.vocab_size));
  Row(&out, "context", absl::StrCat(d.max_context_tokens, " tokens"));
  Row(&out, "weights", FormatByteSize(d.weight_bytes));
  Row(&out, "KV cache",
      absl::StrCat(d.kv_cache_dtype, ", ", d.kv_bytes_per_token, " bytes per token, ", FormatByteSize(ContextBytes(d)),
                   " per full context"));
  Row(&out, "memory needed",
      absl::StrCat(FormatByteSize(d.weight_bytes + ContextBytes(d)), " for one full context"));
  Row(&out, "tokenizer", TokenizerKind(checkpoint));
  Row(&out, "end-of-sequence ids", absl::StrJoin(checkpoint.defaults.eos_token_ids, ", "));
  NormRows(&out, checkpoint.card);
  ListRows(&out, "folded", checkpoint.card.folded);
  ListRows(&out, "notes", checkpoint.card.notes);
  return out;
}

std::string InspectJson(const Checkpoint& checkpoint) {
  const model::ModelDescription& d = checkpoint.model->description();
  Json norms = Json::array();
  for (const rpc::ModelCard::Norm& norm : checkpoint.card.norms) {
    norms.push_back({{"layer", norm.layer ? Json(*norm.layer) : Json()},
                     {"site", norm.site},
                     {"norm", norm.norm}});
  }
  const Json json = {
      {"architecture", d.architecture},
      {"norm_type", d.norm_type},
      {"parameter_count", d.parameter_count},
      {"checkpoint_dtype", d.checkpoint_dtype},
      {"dtype", d.dtype},
      {"quantization", d.quantization},
      {"head_quantization", d.head_quantization},
      {"layer_count", d.layer_count},
      {"hidden_size", d.hidden_size},
      {"heads", d.heads},
      {"kv_heads", d.kv_heads},
      {"head_dim", d.head_dim},
      {"vocab_size", d.vocab_size},
      {"max_context_tokens", d.max_context_tokens},
      {"weight_bytes", d.weight_bytes},
      {"kv_cache_dtype", d.kv_cache_dtype},
      {"kv_bytes_per_token", d.kv_bytes_per_token},
      {"memory_bytes_one_context", d.weight_bytes + ContextBytes(d)},
      {"tokenizer", TokenizerKind(checkpoint)},
      {"eos_token_ids", checkpoint.defaults.eos_token_ids},
      {"norms", norms},
      {"folded", checkpoint.card.folded},
      {"notes", checkpoint.card.notes},
  };
  // A name in a checkpoint need not be UTF-8; JSON must be.
  return json.dump(/*indent=*/1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) +
         "\n";
}

std::string CheckLine(const Checkpoint& checkpoint) {
  const rpc::ModelCard& card = checkpoint.card;
  const std::string quantised =
      card.quantization == "none" && card.head_quantization == "none"
          ? ""
          : absl::StrCat(", quantization ", card.quantization, " (embedding and head ",
                         card.head_quantization, ")");
  return absl::StrCat("model ", card.name, ": ", card.architecture, ", norm ", card.norm_type, ", ",
                      card.parameter_count, " parameters, ", card.dtype, quantised, " on ", card.device,
                      ", weights ", FormatByteSize(card.weight_bytes), ", KV cache ",
                      card.kv_cache_tokens, " tokens (", FormatByteSize(card.kv_cache_bytes),
                      card.kv_cache_dtype == "int8" ? " of int8" : "", "), tokenizer ",
                      TokenizerKind(checkpoint), "\n");
}

}  // namespace normserve::app
