// SPDX-License-Identifier: Apache-2.0
#include "text/special_tokens.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/status_macros.h"
#include "base/string_view.h"
#include "nlohmann/json.hpp"

namespace normserve::text {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxFileBytes = uint64_t{512} << 20;

absl::Status BadKey(const std::string& path, std::string_view key, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", base::Absl(key), " must be ", base::Absl(wanted)));
}

// A token is written as its text or as an object with its text in "content".
std::optional<std::string> TokenText(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return std::nullopt;
  const auto content = value.find("content");
  if (content == value.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

void AddText(const std::string& text, std::vector<std::string>& all) {
  if (!text.empty() && std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
}

absl::Status ReadToken(const std::string& path, const json& file, const char* key,
                       std::optional<std::string>* slot, std::vector<std::string>& all) {
  const auto value = file.find(key);
  if (value == file.end() || value->is_null()) return absl::OkStatus();
  const std::optional<std::string> text = TokenText(*value);
  if (!text) return BadKey(path, key, "a token's text, an object with \"content\", or null");
  AddText(*text, all);
  if (slot != nullptr && !*slot && !text->empty()) *slot = text;
  return absl::OkStatus();
}

absl::Status ReadFlag(const std::string& path, const json& file, const char* key,
                      std::optional<bool>& slot) {
  const auto value = file.find(key);
  if (value == file.end() || value->is_null()) return absl::OkStatus();
  if (!value->is_boolean()) return BadKey(path, key, "true, false or null");
  slot = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadTokens(const std::string& path, const json& file, SpecialTokens& out) {
  NS_RETURN_IF_ERROR(ReadToken(path, file, "bos_token", &out.bos, out.all));
  NS_RETURN_IF_ERROR(ReadToken(path, file, "eos_token", &out.eos, out.all));
  for (const char* key : {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    NS_RETURN_IF_ERROR(ReadToken(path, file, key, nullptr, out.all));
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = file.find(key);
    if (list == file.end() || list->is_null()) continue;
    // An object maps names to tokens; a list holds tokens.
    if (!list->is_array() && !list->is_object()) return BadKey(path, key, "a list of tokens");
    for (const json& value : *list) {
      const std::optional<std::string> text = TokenText(value);
      if (!text) return BadKey(path, key, "a list of tokens");
      AddText(*text, out.all);
    }
  }
  return absl::OkStatus();
}

void ReadAdded(const json& file, std::vector<std::string>& added) {
  const auto decoder = file.find("added_tokens_decoder");
  if (decoder == file.end() || !decoder->is_object()) return;
  for (const json& value : *decoder) {
    if (const std::optional<std::string> text = TokenText(value)) added.push_back(*text);
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  return base::ReadRegularFile(path, kMaxFileBytes);
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& directory) {
  SpecialTokens out;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (!FileExists(path)) continue;
    NS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
    const json file = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (!file.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
    }
    NS_RETURN_IF_ERROR(ReadTokens(path, file, out));
    if (std::string_view(name) == "tokenizer_config.json") {
      NS_RETURN_IF_ERROR(ReadFlag(path, file, "add_bos_token", out.add_bos));
      NS_RETURN_IF_ERROR(ReadFlag(path, file, "add_eos_token", out.add_eos));
      ReadAdded(file, out.added);
    }
  }
  return out;
}

std::string JsonList(const std::vector<std::string>& texts) {
  return json(texts).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace normserve::text
