// SPDX-License-Identifier: Apache-2.0
// Strict JSON reading. nlohmann's throwing accessors are not used.
#include "model/json_fields.h"

#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/string_view.h"

namespace normserve::model {
namespace {

using nlohmann::json;

// Looked at before parsing, so that a file of brackets costs no memory.
bool DeeperThan(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limit) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(std::string_view text, const std::string& where) {
  if (DeeperThan(text, kMaxJsonDepth)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": JSON is nested deeper than ", kMaxJsonDepth));
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string duplicate;
  const json::parser_callback_t watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      if (!keys.empty()) keys.pop_back();
    } else if (event == json::parse_event_t::key && !keys.empty()) {
      const std::string* key = parsed.get_ptr<const std::string*>();
      if (key != nullptr && !keys.back().insert(*key).second) duplicate = *key;
    }
    return true;
  };
  json parsed = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || !parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": is not a JSON object"));
  }
  if (!duplicate.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": key \"", duplicate, "\" appears twice"));
  }
  return parsed;
}

const json* JsonFields::Find(const std::string& key) const {
  const auto it = object_->find(key);
  if (it == object_->end() || it->is_null()) return nullptr;
  const std::string* text = it->get_ptr<const std::string*>();
  if (text != nullptr && *text == "None") return nullptr;
  return &*it;
}

absl::Status JsonFields::Bad(const std::string& key, const std::string& allowed) const {
  const json* value = Find(key);
  return absl::InvalidArgumentError(absl::StrCat(where_, ": ", key, " is ",
                                                 value ? Shown(*value) : "missing", "; allowed: ",
                                                 allowed));
}

absl::Status JsonFields::Missing(const std::string& key, const std::string& allowed) const {
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", key, " is missing; allowed: ", allowed));
}

namespace {

std::optional<int64_t> AsInt(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t u = *value.get_ptr<const json::number_unsigned_t*>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return *value.get_ptr<const json::number_integer_t*>();
  return std::nullopt;
}

std::optional<double> AsNumber(const json& value) {
  if (value.is_number_float()) return *value.get_ptr<const json::number_float_t*>();
  if (const auto integer = AsInt(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

}  // namespace

absl::StatusOr<int64_t> JsonFields::Int(const std::string& key, int64_t least, int64_t most,
                                        std::optional<int64_t> fallback) const {
  const std::string allowed = absl::StrCat("an integer from ", least, " to ", most);
  const json* value = Find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return Missing(key, allowed);
  }
  const std::optional<int64_t> number = AsInt(*value);
  if (!number || *number < least || *number > most) return Bad(key, allowed);
  return *number;
}

absl::StatusOr<double> JsonFields::Number(const std::string& key, double least, double most,
                                          std::optional<double> fallback) const {
  const std::string allowed = absl::StrCat("a number from ", least, " to ", most);
  const json* value = Find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return Missing(key, allowed);
  }
  const std::optional<double> number = AsNumber(*value);
  if (!number || !std::isfinite(*number) || *number < least || *number > most) {
    return Bad(key, allowed);
  }
  return *number;
}

absl::StatusOr<bool> JsonFields::Bool(const std::string& key, bool fallback) const {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  const bool* flag = value->get_ptr<const bool*>();
  if (flag == nullptr) return Bad(key, "true, false");
  return *flag;
}

absl::StatusOr<std::string> JsonFields::String(const std::string& key,
                                               const std::string& fallback) const {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  const std::string* text = value->get_ptr<const std::string*>();
  if (text == nullptr) return Bad(key, "a string");
  return *text;
}

absl::StatusOr<std::string> JsonFields::OneOf(const std::string& key,
                                              const std::vector<std::string>& known,
                                              const std::string& fallback) const {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  const std::string* text = value->get_ptr<const std::string*>();
  if (text != nullptr) {
    for (const std::string& name : known) {
      if (name == *text) return name;
    }
  }
  return Bad(key, absl::StrJoin(known, ", "));
}

absl::StatusOr<std::vector<int64_t>> JsonFields::IntOrList(const std::string& key, int64_t least,
                                                           int64_t most) const {
  const std::string allowed =
      absl::StrCat("an integer from ", least, " to ", most, ", or a list of such");
  std::vector<int64_t> numbers;
  const json* value = Find(key);
  if (value == nullptr) return numbers;
  const auto add = [&](const json& item) {
    const std::optional<int64_t> number = AsInt(item);
    if (!number || *number < least || *number > most) return false;
    numbers.push_back(*number);
    return true;
  };
  if (!value->is_array()) {
    if (!add(*value)) return Bad(key, allowed);
    return numbers;
  }
  for (const json& item : *value) {
    if (!add(item)) return Bad(key, allowed);
  }
  return numbers;
}

}  // namespace normserve::model
