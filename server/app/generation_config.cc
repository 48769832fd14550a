// SPDX-License-Identifier: Apache-2.0
#include "app/generation_config.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/status_macros.h"

namespace normserve::app {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxFileBytes = 16 << 20;

// Reads keys of one file. The first fault is kept and named.
class Reader {
 public:
  Reader(const Json& json, const std::string& path) : json_(json), path_(path) {}

  const absl::Status& status() const { return status_; }

  bool Bool(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) Fail(key, *value, "true or false");
    return value->is_boolean() && value->get<bool>();
  }

  // In [low, high]; `low_open`: low itself is not allowed.
  std::optional<float> Float(const char* key, float low, float high, bool low_open) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : -1.0;
    if (value->is_number() && (low_open ? number > low : number >= low) && number <= high) {
      return static_cast<float>(number);
    }
    Fail(key, *value, absl::StrCat(low_open ? "above " : "", low, " to ", high));
    return std::nullopt;
  }

  std::optional<uint32_t> Count(const char* key, uint32_t low) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number_integer() && value->get<int64_t>() >= low &&
        value->get<int64_t>() <= std::numeric_limits<uint32_t>::max()) {
      return value->get<uint32_t>();
    }
    Fail(key, *value, absl::StrCat("a whole number, ", low, " or more"));
    return std::nullopt;
  }

 private:
  const Json* Find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  void Fail(const char* key, const Json& value, const std::string& allowed) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": key '", key, "': ", value.dump(), "; allowed: ", allowed));
  }

  const Json& json_;
  const std::string& path_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<rpc::GenerationDefaults> LoadGenerationDefaults(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "generation_config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return rpc::GenerationDefaults();
  NS_ASSIGN_OR_RETURN(const std::string text, base::ReadRegularFile(path, kMaxFileBytes));
  const Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  Reader read(json, path);
  rpc::GenerationDefaults defaults;
  defaults.do_sample = read.Bool("do_sample");
  defaults.temperature = read.Float("temperature", 0, kLargest, /*low_open=*/false);
  defaults.top_k = read.Count("top_k", 0);
  defaults.top_p = read.Float("top_p", 0, 1, /*low_open=*/true);
  defaults.min_p = read.Float("min_p", 0, 1, /*low_open=*/false);
  defaults.repetition_penalty = read.Float("repetition_penalty", 0, 10, /*low_open=*/true);
  defaults.max_new_tokens = read.Count("max_new_tokens", 1);
  defaults.max_length = read.Count("max_length", 1);
  defaults.min_new_tokens = read.Count("min_new_tokens", 0);
  NS_RETURN_IF_ERROR(read.status());
  return defaults;
}

}  // namespace normserve::app
