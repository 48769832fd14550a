// SPDX-License-Identifier: Apache-2.0
// The parameter messages: sampling and stop criteria.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/string_view.h"
#include "rpc/request_parser.h"

namespace normserve::rpc {
namespace {

using base::Absl;

constexpr int kMaxLogitBias = 1024;
constexpr float kMaxLogitBiasValue = 100.0f;
constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr int kMaxStopTokens = 64;

// A float's allowed interval. NaN is in none; an open low end is for values that divide.
struct Range {
  float low;
  float high;
  bool low_open = false;
  bool Holds(float x) const { return (low_open ? x > low : x >= low) && x <= high; }
};

// As many digits as tell the value from its neighbours: 1.0000001 is not shown as 1.
std::string Shown(float value) {
  char digits[32];
  const std::to_chars_result end = std::to_chars(std::begin(digits), std::end(digits), value);
  return std::string(digits, end.ptr);
}

absl::Status CheckRange(std::string_view field, float value, const Range& range) {
  if (range.Holds(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(field), ": ", Shown(value), "; allowed: ", range.low_open ? "above " : "",
                   Shown(range.low), " to ", Shown(range.high)));
}

absl::Status CheckFloats(const engine::SamplingParams& sampling) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (!(sampling.temperature >= 0 && sampling.temperature <= kLargest)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: ",
                                                   Shown(sampling.temperature),
                                                   "; allowed: 0 or more, finite"));
  }
  const struct {
    std::string_view field;
    float value;
    Range range;
  } checks[] = {
      {"sampling.top_p", sampling.top_p, {0, 1, true}},
      {"sampling.min_p", sampling.min_p, {0, 1}},
      {"sampling.repetition_penalty", sampling.repetition_penalty, {0, 10, true}},
      {"sampling.presence_penalty", sampling.presence_penalty, {-2, 2}},
      {"sampling.frequency_penalty", sampling.frequency_penalty, {-2, 2}},
  };
  for (const auto& check : checks) {
    NS_RETURN_IF_ERROR(CheckRange(check.field, check.value, check.range));
  }
  return absl::OkStatus();
}

absl::Status ParseLogitBias(const v1::SamplingParams& message, const ServedModel& model,
                            engine::SamplingParams* sampling) {
  if (message.logit_bias_size() > kMaxLogitBias) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.logit_bias: ", message.logit_bias_size(),
                     " entries; allowed: at most ", kMaxLogitBias));
  }
  const uint32_t vocab_size = model.engine->runner_info().vocab_size;
  for (const auto& [id, bias] : message.logit_bias()) {
    if (id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias: token id ", id, "; allowed: 0 to ", vocab_size - 1));
    }
    NS_RETURN_IF_ERROR(CheckRange(absl::StrCat("sampling.logit_bias[", id, "]"), bias,
                                  {-kMaxLogitBiasValue, kMaxLogitBiasValue}));
    sampling->logit_bias.emplace_back(id, bias);
  }
  // A map's order is arbitrary, and a request's result depends on its content alone.
  std::sort(sampling->logit_bias.begin(), sampling->logit_bias.end());
  return absl::OkStatus();
}

// `origin`, for an error, where the caller did not say the number.
struct NewTokenLimit {
  uint32_t tokens = 0;
  const char* origin = "";
};

absl::StatusOr<NewTokenLimit> MaxNewTokens(const v1::StopCriteria& message, size_t prompt_tokens,
                                           const GenerationDefaults& defaults) {
  if (message.has_max_new_tokens()) {
    if (message.max_new_tokens() == 0) {
      return absl::InvalidArgumentError("stop.max_new_tokens: 0; allowed: 1 or more");
    }
    return NewTokenLimit{message.max_new_tokens()};
  }
  constexpr const char* kModels = ", by the model's generation_config.json";
  if (defaults.max_new_tokens) return NewTokenLimit{*defaults.max_new_tokens, kModels};
  if (defaults.max_length && *defaults.max_length > prompt_tokens) {
    return NewTokenLimit{*defaults.max_length - static_cast<uint32_t>(prompt_tokens), kModels};
  }
  return NewTokenLimit{defaults.server_max_new_tokens, ", the server's default"};
}

absl::Status ParseStopStrings(const v1::StopCriteria& message, const ServedModel& model,
                              engine::StopCriteria* stop) {
  if (message.stop_strings_size() == 0) return absl::OkStatus();
  NS_RETURN_IF_ERROR(NeedsTokenizer("stop.stop_strings", model));
  if (message.stop_strings_size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.stop_strings: ", message.stop_strings_size(),
                     " strings; allowed: at most ", kMaxStopStrings));
  }
  for (int i = 0; i < message.stop_strings_size(); ++i) {
    const size_t bytes = message.stop_strings(i).size();
    if (bytes == 0 || bytes > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop.stop_strings[", i, "]: ", bytes, " bytes; allowed: 1 to ", kMaxStopStringBytes));
    }
  }
  stop->stop_strings.assign(message.stop_strings().begin(), message.stop_strings().end());
  return absl::OkStatus();
}

absl::Status ParseStopTokens(const v1::StopCriteria& message, const ServedModel& model,
                             engine::StopCriteria* stop) {
  if (message.stop_token_ids_size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.stop_token_ids: ", message.stop_token_ids_size(),
                     " ids; allowed: at most ", kMaxStopTokens));
  }
  const uint32_t vocab_size = model.engine->runner_info().vocab_size;
  for (int i = 0; i < message.stop_token_ids_size(); ++i) {
    if (message.stop_token_ids(i) >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("stop.stop_token_ids[", i,
                                                     "]: ", message.stop_token_ids(i),
                                                     "; allowed: 0 to ", vocab_size - 1));
    }
  }
  stop->stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<engine::SamplingParams> ParseSampling(const v1::SamplingParams& message,
                                                     const ServedModel& model) {
  const GenerationDefaults& defaults = model.defaults;
  engine::SamplingParams sampling;
  sampling.temperature = message.has_temperature() ? message.temperature()
                         : defaults.do_sample      ? defaults.temperature.value_or(1.0f)
                                                   : 0.0f;
  sampling.top_k = message.has_top_k() ? message.top_k() : defaults.top_k.value_or(0);
  sampling.top_p = message.has_top_p() ? message.top_p() : defaults.top_p.value_or(1.0f);
  sampling.min_p = message.has_min_p() ? message.min_p() : defaults.min_p.value_or(0.0f);
  sampling.repetition_penalty = message.has_repetition_penalty()
                                    ? message.repetition_penalty()
                                    : defaults.repetition_penalty.value_or(1.0f);
  sampling.presence_penalty = message.presence_penalty();
  sampling.frequency_penalty = message.frequency_penalty();
  NS_RETURN_IF_ERROR(CheckFloats(sampling));
  // The largest k says the same as "all", whatever the vocabulary.
  sampling.top_k = std::min(sampling.top_k, model.engine->runner_info().vocab_size);
  NS_RETURN_IF_ERROR(ParseLogitBias(message, model, &sampling));
  if (message.has_seed()) {
    sampling.seed = message.seed();
  } else {
    absl::BitGen random;
    sampling.seed = absl::Uniform<uint64_t>(random);
  }
  return sampling;
}

absl::StatusOr<engine::StopCriteria> ParseStop(const v1::StopCriteria& message,
                                               size_t prompt_tokens, const ServedModel& model) {
  engine::StopCriteria stop;
  NS_ASSIGN_OR_RETURN(const NewTokenLimit limit,
                      MaxNewTokens(message, prompt_tokens, model.defaults));
  stop.max_new_tokens = limit.tokens;
  if (message.has_min_new_tokens()) {
    stop.min_new_tokens = message.min_new_tokens();
    if (stop.min_new_tokens > stop.max_new_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("stop.min_new_tokens: ", stop.min_new_tokens,
                                                     "; allowed: 0 to max_new_tokens (",
                                                     limit.tokens, limit.origin, ")"));
    }
  } else {
    stop.min_new_tokens = std::min(model.defaults.min_new_tokens.value_or(0), stop.max_new_tokens);
  }
  NS_RETURN_IF_ERROR(ParseStopStrings(message, model, &stop));
  NS_RETURN_IF_ERROR(ParseStopTokens(message, model, &stop));
  if (!message.ignore_eos()) stop.eos_token_ids = model.defaults.eos_token_ids;
  stop.include_stop_string = message.include_stop_string();
  return stop;
}

}  // namespace normserve::rpc
