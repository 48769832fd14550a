// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: what it claims against what is there. Touches no file and no torch.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/json_fields.h"
#include "model/safetensors.h"

namespace normserve::model {
namespace {

using nlohmann::json;

struct DtypeSize {
  const char* name;
  uint64_t bytes;
};
constexpr std::array<DtypeSize, 17> kDtypes = {{
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
}};

std::optional<uint64_t> BytesOf(const std::string& dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (dtype == known.name) return known.bytes;
  }
  return std::nullopt;
}

// Refuses with "<file>: tensor <name> <what>".
struct Refusal {
  const std::string& file;
  const std::string& tensor;
  absl::Status operator()(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", tensor, " ", what));
  }
};

std::optional<uint64_t> Unsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return *value.get_ptr<const json::number_unsigned_t*>();
}

absl::Status ReadShape(const json& shape, const Refusal& refuse, TensorEntry& entry) {
  if (!shape.is_array() || shape.size() > 8) return refuse("has no shape of at most 8 sizes");
  uint64_t elements = 1;
  for (const json& item : shape) {
    const std::optional<uint64_t> size = Unsigned(item);
    if (!size || *size > static_cast<uint64_t>(INT64_MAX)) {
      return refuse("has a size that is not an integer >= 0");
    }
    entry.shape.push_back(static_cast<int64_t>(*size));
    if (__builtin_mul_overflow(elements, *size, &elements) ||
        elements > static_cast<uint64_t>(INT64_MAX)) {
      return refuse("has a shape whose element count does not fit 63 bits");
    }
  }
  entry.elements = static_cast<int64_t>(elements);
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadEntry(const json& value, uint64_t data_bytes,
                                      const Refusal& refuse) {
  if (!value.is_object()) return refuse("is not described by an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) return refuse("has no dtype");
  if (shape == value.end()) return refuse("has no shape of at most 8 sizes");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    return refuse("has no data_offsets [begin, end]");
  }
  TensorEntry entry;
  entry.dtype = *dtype->get_ptr<const std::string*>();
  const std::optional<uint64_t> width = BytesOf(entry.dtype);
  if (!width) return refuse(absl::StrCat("has the unknown dtype \"", entry.dtype, "\""));
  NS_RETURN_IF_ERROR(ReadShape(*shape, refuse, entry));
  const std::optional<uint64_t> begin = Unsigned((*offsets)[0]);
  const std::optional<uint64_t> end = Unsigned((*offsets)[1]);
  if (!begin || !end) return refuse("has data_offsets that are not integers >= 0");
  entry.begin = *begin;
  entry.end = *end;
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return refuse(absl::StrCat("has data_offsets [", entry.begin, ", ", entry.end,
                               "]; allowed: begin <= end <= ", data_bytes,
                               ", the bytes of data in the file"));
  }
  uint64_t span = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(entry.elements), *width, &span) ||
      span != entry.end - entry.begin) {
    return refuse(absl::StrCat("has ", entry.end - entry.begin, " bytes; its shape [",
                               absl::StrJoin(entry.shape, ", "), "] of ", entry.dtype,
                               " does not"));
  }
  return entry;
}

// MATCHES: the reference library refuses overlaps and unused bytes alike.
absl::Status CheckCoverage(const std::map<std::string, TensorEntry>& entries, uint64_t data_bytes,
                           const std::string& file) {
  std::vector<std::pair<const TensorEntry*, const std::string*>> order;
  for (const auto& [name, entry] : entries) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t at = 0;
  for (const auto& [entry, name] : order) {
    const Refusal refuse{file, *name};
    if (entry->begin < at) return refuse(absl::StrCat("overlaps another one at byte ", entry->begin));
    if (entry->begin > at) return refuse(absl::StrCat("leaves a gap before byte ", entry->begin));
    at = entry->end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensors use ", at, " bytes of data, the ",
                                                   "file has ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, TensorEntry>> ParseSafetensorsHeader(
    std::string_view header, uint64_t data_bytes, const std::string& file) {
  NS_ASSIGN_OR_RETURN(const json parsed, ParseJsonObject(header, file + ": header"));
  std::map<std::string, TensorEntry> entries;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") continue;
    NS_ASSIGN_OR_RETURN(TensorEntry entry, ReadEntry(value, data_bytes, Refusal{file, name}));
    entries.emplace(name, std::move(entry));
  }
  NS_RETURN_IF_ERROR(CheckCoverage(entries, data_bytes, file));
  return entries;
}

}  // namespace normserve::model
