// SPDX-License-Identifier: Apache-2.0
// Fuzzes the safetensors header check. What it accepts must lie within the data, whatever the bytes say.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kDataBytes = 4096;
  const std::string_view header(reinterpret_cast<const char*>(data), size);
  const auto entries = normserve::model::ParseSafetensorsHeader(header, kDataBytes, "fuzz.safetensors");
  if (!entries.ok()) return entries.status().message().empty() ? (std::abort(), 0) : 0;
  for (const auto& [name, entry] : *entries) {
    if (entry.begin > entry.end || entry.end > kDataBytes) std::abort();
  }
  return 0;
}
