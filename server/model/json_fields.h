// SPDX-License-Identifier: Apache-2.0
// Reading untrusted JSON: bounded depth, no duplicate keys, typed fields with ranges. Every failure is
// one sentence that names file, key, value and what is allowed. Uses nlohmann without exceptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace normserve::model {

inline constexpr int kMaxJsonDepth = 32;

// Parses an object. `where` (a file name) opens each message.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where);

// Typed access to one object, which must outlive it. A key that is absent, null or the string "None"
// (as the BHyT code writes what its YAML left out) counts as absent.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(&object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const nlohmann::json* Find(const std::string& key) const;
  bool Has(const std::string& key) const { return Find(key) != nullptr; }

  // The value, or `fallback` if absent; without one an absent key is an error. Bounds are inclusive.
  absl::StatusOr<int64_t> Int(const std::string& key, int64_t least, int64_t most,
                              std::optional<int64_t> fallback = std::nullopt) const;
  absl::StatusOr<double> Number(const std::string& key, double least, double most,
                                std::optional<double> fallback = std::nullopt) const;
  absl::StatusOr<bool> Bool(const std::string& key, bool fallback) const;
  absl::StatusOr<std::string> String(const std::string& key, const std::string& fallback) const;
  // One of `known`, else an error that lists them.
  absl::StatusOr<std::string> OneOf(const std::string& key, const std::vector<std::string>& known,
                                    const std::string& fallback) const;
  // An integer or a list of them.
  absl::StatusOr<std::vector<int64_t>> IntOrList(const std::string& key, int64_t least,
                                                 int64_t most) const;

  // "<where>: <key> is <value>; allowed: <allowed>".
  absl::Status Bad(const std::string& key, const std::string& allowed) const;
  absl::Status Missing(const std::string& key, const std::string& allowed) const;

 private:
  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace normserve::model
