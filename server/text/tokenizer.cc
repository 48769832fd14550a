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

// A converted nanoGPT checkpoint says which public tokenizer it was trained with.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadNamed(const std::string& directory,
                                                     const SpecialTokens& specials) {
  const std::string path = absl::StrCat(directory, "/config.json");
  if (!FileExists(path)) return std::unique_ptr<Tokenizer>();
  NS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  const auto config = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return std::unique_ptr<Tokenizer>();  // the model's loader says it
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
    if (LooksLikeTiktoken(bytes)) return LoadTiktoken(path("tokenizer.model"), bytes, specials);
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
  return LoadNamed(directory, specials);
}

}  // namespace normserve::text
