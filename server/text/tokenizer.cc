// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "text/rust_tokenizer.h"
#include "text/special_tokens.h"

namespace normserve::text {
namespace {

// Whether the file begins with a "base64 rank" line: no SentencePiece model (a protobuf) does.
bool LooksLikeTiktoken(const std::string& bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const size_t space = bytes.find(' ');
  if (space == 0 || space == std::string::npos || space + 1 >= end) return false;
  const auto is_base64 = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/' || c == '=';
  };
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || c == '\r'; };
  const auto at = [&](size_t i) { return bytes.begin() + static_cast<ptrdiff_t>(i); };
  return std::all_of(at(0), at(space), is_base64) && std::all_of(at(space + 1), at(end), is_digit);
}

// The model's config.json; an empty object when there is none, or none that its own loader will take.
absl::StatusOr<nlohmann::json> ReadConfig(const std::string& path) {
  if (!FileExists(path)) return nlohmann::json::object();
  NS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  nlohmann::json config = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : nlohmann::json::object();
}

// The file of ranks is the same; the names that it lacks tell, or the rotary embedding that came with
// Llama 3.1.
Llama3Release ReleaseOf(const SpecialTokens& specials, const nlohmann::json& config) {
  for (const std::vector<std::string>* texts : {&specials.all, &specials.added}) {
    for (const std::string& text : *texts) {
      if (text == "<|finetune_right_pad_id|>" || text == "<|eom_id|>" || text == "<|python_tag|>") {
        return Llama3Release::k31;
      }
    }
  }
  // Named, and without those: Llama 3.
  if (!specials.added.empty()) return Llama3Release::k30;
  const auto scaling = config.find("rope_scaling");
  if (scaling == config.end() || !scaling->is_object()) return Llama3Release::k30;
  for (const char* key : {"rope_type", "type"}) {
    const auto type = scaling->find(key);
    if (type != scaling->end() && *type == "llama3") return Llama3Release::k31;
  }
  return Llama3Release::k30;
}

// A converted nanoGPT checkpoint says which public tokenizer it was trained with.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadNamed(const std::string& path,
                                                     const SpecialTokens& specials) {
  NS_ASSIGN_OR_RETURN(const nlohmann::json config, ReadConfig(path));
  const auto name = config.find("tokenizer");
  if (name == config.end() || name->is_null()) return std::unique_ptr<Tokenizer>();
  if (*name == "gpt2") return LoadGpt2Builtin(specials);
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": tokenizer is ", name->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
      ", and only \"gpt2\" is known"));
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> Tokenizer::EncodePrompt(
    std::string_view text, std::optional<bool> add_special) const {
  const std::string_view bos = bos_text();
  const bool begins_with_bos = !bos.empty() && text.substr(0, bos.size()) == bos;
  return Encode(text, add_special.value_or(!begins_with_bos));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory) {
  const auto path = [&](const char* name) { return absl::StrCat(directory, "/", name); };
  NS_ASSIGN_OR_RETURN(const SpecialTokens specials, ReadSpecialTokens(directory));
  if (FileExists(path("tokenizer.json"))) {
    return LoadTokenizerJson(path("tokenizer.json"), specials);
  }
  if (FileExists(path("tokenizer.model"))) {
    NS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path("tokenizer.model")));
    if (LooksLikeTiktoken(bytes)) {
      NS_ASSIGN_OR_RETURN(const nlohmann::json config, ReadConfig(path("config.json")));
      return LoadTiktoken(path("tokenizer.model"), bytes, specials, ReleaseOf(specials, config));
    }
    return LoadSentencePiece(path("tokenizer.model"), bytes, specials);
  }
  const bool has_vocab = FileExists(path("vocab.json"));
  const bool has_merges = FileExists(path("merges.txt"));
  if (has_vocab && has_merges) return LoadGpt2(path("vocab.json"), path("merges.txt"), specials);
  if (has_vocab || has_merges) {
    return absl::InvalidArgumentError(absl::StrCat(path(has_vocab ? "vocab.json" : "merges.txt"),
                                                   ": is there without ",
                                                   has_vocab ? "merges.txt" : "vocab.json"));
  }
  return LoadNamed(path("config.json"), specials);
}

}  // namespace normserve::text
