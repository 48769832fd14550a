// SPDX-License-Identifier: Apache-2.0
#include "app/byte_size.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/string_view.h"

namespace normserve::app {
namespace {

constexpr std::string_view kUnits = "KMGT";
constexpr double kLargestBytes = 1e18;  // far from where a double or uint64 ends

bool RemoveSuffix(std::string_view suffix, std::string_view* text) {
  if (text->size() < suffix.size() || text->substr(text->size() - suffix.size()) != suffix) {
    return false;
  }
  text->remove_suffix(suffix.size());
  return true;
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  std::string_view number = text;
  if (!RemoveSuffix("iB", &number)) RemoveSuffix("B", &number);
  double scale = 1;
  const size_t unit = number.empty() ? std::string_view::npos : kUnits.find(number.back());
  if (unit != std::string_view::npos) {
    number.remove_suffix(1);
    for (size_t i = 0; i <= unit; ++i) scale *= 1024;
  }
  double value = 0;
  if (!absl::SimpleAtod(base::Absl(number), &value) || !(value > 0) ||
      value * scale > kLargestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", base::Absl(text), "'; allowed: a positive number of bytes, or one with K, M, G or T"));
  }
  return static_cast<uint64_t>(value * scale);
}

std::string FormatByteSize(uint64_t bytes) {
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.1f %ciB", value, kUnits[unit - 1]);
}

}  // namespace normserve::app
