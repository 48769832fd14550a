// SPDX-License-Identifier: Apache-2.0
// See prompts.h.
#include "client/prompts.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

using nlohmann::json;

// False when the line is not of a known form.
bool ParseJsonPrompt(absl::string_view line, Prompt* prompt) {
  const json value = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return false;
  if (value.contains("max_new_tokens")) {
    const json& most = value["max_new_tokens"];
    if (!most.is_number_unsigned() || most.get<uint64_t>() > UINT32_MAX) return false;
    prompt->max_new_tokens = most.get<uint32_t>();
  }
  for (const char* key : {"text", "prompt"}) {
    if (!value.contains(key)) continue;
    if (!value[key].is_string()) return false;
    prompt->text = value[key].get<std::string>();
    return true;
  }
  if (!value.contains("token_ids") || !value["token_ids"].is_array()) return false;
  for (const json& id : value["token_ids"]) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) return false;
    prompt->ids.push_back(id.get<uint32_t>());
  }
  return !prompt->ids.empty();
}

// Uniform in [low, high] by hand: the standard distributions differ between libraries. The modulo's
// bias is below 2^-32.
uint32_t Uniform(std::mt19937_64* random, uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>((*random)() % (uint64_t{high} - low + 1));
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ParsePrompts(const std::string& content) {
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(content), "{");
  std::vector<Prompt> prompts;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    Prompt& prompt = prompts.emplace_back();
    if (!is_json) {
      prompt.text = std::string(line);
    } else if (!ParseJsonPrompt(line, &prompt)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": not a JSON object with a \"text\" string or a non-empty ",
          "\"token_ids\" list (\"max_new_tokens\", if present, a whole number)"));
    }
  }
  if (prompts.empty()) return absl::InvalidArgumentError("the prompt file has no prompts");
  return prompts;
}

std::vector<Prompt> SyntheticPrompts(const SyntheticSpec& spec) {
  std::mt19937_64 random(spec.seed);
  std::vector<Prompt> prompts(spec.count);
  for (Prompt& prompt : prompts) {
    prompt.ids.resize(Uniform(&random, spec.prompt_tokens.low, spec.prompt_tokens.high));
    for (uint32_t& id : prompt.ids) id = Uniform(&random, 0, spec.vocab_size - 1);
    prompt.max_new_tokens = Uniform(&random, spec.output_tokens.low, spec.output_tokens.high);
  }
  return prompts;
}

}  // namespace normserve::client
