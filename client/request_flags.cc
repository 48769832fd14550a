// SPDX-License-Identifier: Apache-2.0
// See request_flags.h.
#include "client/request_flags.h"

#include "base/status_macros.h"
#include "client/flag_values.h"

namespace normserve::client {
namespace {

void AddSamplingFlags(CLI::App* app, RequestFlags* flags) {
  const char* group = "Sampling";
  app->add_option("--temperature", flags->temperature, "0 is greedy")->group(group);
  app->add_option("--top-k", flags->top_k, "keep the k most probable tokens; 0 = all")
      ->group(group);
  app->add_option("--top-p", flags->top_p,
                  "keep the smallest set reaching this probability, (0, 1]")
      ->group(group);
  app->add_option("--min-p", flags->min_p, "drop tokens below this times the best, [0, 1]")
      ->group(group);
  app->add_option("--seed", flags->seed, "seed of the request's own random stream")->group(group);
  app->add_option("--logit-bias", flags->logit_bias, "ID=VALUE, may be repeated")
      ->allow_extra_args(false)  // else it would swallow the prompt that follows
      ->group(group);
  app->add_option("--repetition-penalty", flags->repetition_penalty, "(0, 10], 1 = off")
      ->group(group);
  app->add_option("--presence-penalty", flags->presence_penalty, "[-2, 2]")->group(group);
  app->add_option("--frequency-penalty", flags->frequency_penalty, "[-2, 2]")->group(group);
}

void AddStopFlags(CLI::App* app, RequestFlags* flags) {
  const char* group = "Stopping";
  app->add_option("-n,--max-new-tokens", flags->max_new_tokens, "most tokens to generate")
      ->group(group);
  app->add_option("--min-new-tokens", flags->min_new_tokens, "tokens before which nothing stops it")
      ->group(group);
  app->add_option("--stop", flags->stop_strings, "stop string, may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--stop-token-id", flags->stop_token_ids, "stop token, may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_flag("--ignore-eos", flags->ignore_eos, "do not end at end-of-sequence tokens")
      ->group(group);
  app->add_flag("--include-stop-string", flags->include_stop_string,
                "leave the matched stop string in the text")
      ->group(group);
}

void AddOutputFlags(CLI::App* app, RequestFlags* flags) {
  const char* group = "Output";
  app->add_flag("--logprobs", flags->logprobs, "return the tokens' log-probabilities")
      ->group(group);
  app->add_option("--top-logprobs", flags->top_logprobs, "return this many alternatives per token")
      ->group(group);
  app->add_flag("--keep-special-tokens", flags->keep_special_tokens,
                "leave special tokens in the text")
      ->group(group);
  app->add_flag("--omit-text", flags->omit_text, "token ids only, no text")->group(group);
  AddSpecialTokensFlags(app, group, &flags->add_special_tokens);
  app->add_option("--truncate-prompt-tokens", flags->truncate_prompt_tokens,
                  "keep the last N prompt tokens")
      ->group(group);
  app->add_option("--priority", flags->priority, "larger runs earlier, [-100, 100]")->group(group);
}

void ApplySampling(const RequestFlags& flags, v1::SamplingParams* to) {
  if (flags.temperature) to->set_temperature(*flags.temperature);
  if (flags.top_k) to->set_top_k(*flags.top_k);
  if (flags.top_p) to->set_top_p(*flags.top_p);
  if (flags.min_p) to->set_min_p(*flags.min_p);
  if (flags.seed) to->set_seed(*flags.seed);
  if (flags.repetition_penalty) to->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) to->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) to->set_frequency_penalty(*flags.frequency_penalty);
}

void ApplyStop(const RequestFlags& flags, v1::StopCriteria* to) {
  if (flags.max_new_tokens) to->set_max_new_tokens(*flags.max_new_tokens);
  if (flags.min_new_tokens) to->set_min_new_tokens(*flags.min_new_tokens);
  for (const std::string& text : flags.stop_strings) to->add_stop_strings(text);
  for (const uint32_t id : flags.stop_token_ids) to->add_stop_token_ids(id);
  if (flags.ignore_eos) to->set_ignore_eos(true);
  if (flags.include_stop_string) to->set_include_stop_string(true);
}

}  // namespace

void AddSpecialTokensFlags(CLI::App* app, const char* group, std::optional<bool>* value) {
  // Not one flag with two spellings: CLI11 would write "false" when neither is given.
  app->add_flag_callback(
         "--add-special-tokens", [value] { *value = true; },
         "have BOS added to the text (default: unless the text begins with it)")
      ->group(group);
  app->add_flag_callback(
         "--no-add-special-tokens", [value] { *value = false; }, "have no BOS added")
      ->group(group);
}

void AddConnectionFlags(CLI::App* app, ConnectionOptions* options) {
  const char* group = "Connection";
  app->add_option("--target", options->target, "HOST:PORT of the server")
      ->capture_default_str()
      ->group(group);
  app->add_option("--model", options->model,
                  "model name; may be left out when the server has exactly one")
      ->group(group);
  app->add_option("--timeout", options->timeout_s, "deadline per call in seconds, 0 = none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app->add_option("--request-id", options->request_id, "sent as x-request-id")->group(group);
}

void AddRequestFlags(CLI::App* app, RequestFlags* flags) {
  AddSamplingFlags(app, flags);
  AddStopFlags(app, flags);
  AddOutputFlags(app, flags);
}

absl::Status ApplyRequestFlags(const RequestFlags& flags, v1::GenerateRequest* request) {
  ApplySampling(flags, request->mutable_sampling());
  NS_ASSIGN_OR_RETURN(const auto bias, ParseLogitBias(flags.logit_bias));
  for (const auto& [id, value] : bias) {
    (*request->mutable_sampling()->mutable_logit_bias())[id] = value;
  }
  ApplyStop(flags, request->mutable_stop());
  v1::OutputOptions* output = request->mutable_output();
  if (flags.logprobs) output->set_logprobs(true);
  if (flags.top_logprobs) output->set_top_logprobs(*flags.top_logprobs);
  if (flags.keep_special_tokens) output->set_skip_special_tokens(false);
  if (flags.omit_text) output->set_omit_text(true);
  if (flags.add_special_tokens) request->set_add_special_tokens(*flags.add_special_tokens);
  if (flags.truncate_prompt_tokens) {
    request->set_truncate_prompt_tokens(*flags.truncate_prompt_tokens);
  }
  if (flags.priority) request->set_priority(*flags.priority);
  return absl::OkStatus();
}

}  // namespace normserve::client
