// SPDX-License-Identifier: Apache-2.0
// See score_command.h.
#include "client/score_command.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/flag_values.h"
#include "client/response_json.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

using nlohmann::json;

bool IsIdList(const json& value) {
  if (!value.is_array()) return false;
  for (const json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) return false;
  }
  return true;
}

void AddIds(const json& list, v1::TokenIds* ids) {
  for (const json& id : list) ids->add_ids(id.get<uint32_t>());
}

// False when the object has none of the known forms.
bool ParseItem(const json& line, v1::ScoreItem* item) {
  if (!line.is_object()) return false;
  if (line.contains("continuation")) {
    const json& continuation = line["continuation"];
    const json none = continuation.is_string() ? json("") : json::array();
    const json& context = line.contains("context") ? line["context"] : none;
    if (context.is_string() && continuation.is_string()) {
      item->mutable_text_pair()->set_context(context.get<std::string>());
      item->mutable_text_pair()->set_continuation(continuation.get<std::string>());
      return true;
    }
    if (!IsIdList(context) || !IsIdList(continuation)) return false;
    AddIds(context, item->mutable_token_pair()->mutable_context());
    AddIds(continuation, item->mutable_token_pair()->mutable_continuation());
    return true;
  }
  if (line.contains("text") && line["text"].is_string()) {
    item->set_text(line["text"].get<std::string>());
    return true;
  }
  if (!line.contains("token_ids") || !IsIdList(line["token_ids"])) return false;
  AddIds(line["token_ids"], item->mutable_token_ids());
  return true;
}

absl::StatusOr<std::vector<v1::ScoreItem>> CollectItems(const ScoreOptions& options) {
  std::vector<v1::ScoreItem> items;
  if (!options.pairs.empty()) {
    NS_ASSIGN_OR_RETURN(const std::string content, ReadAll(options.pairs));
    return ParseScoreItems(content);
  }
  if (options.texts.empty()) {
    NS_ASSIGN_OR_RETURN(const std::string content,
                        ReadAll(options.file.empty() ? "-" : options.file));
    items.emplace_back().set_text(content);
  }
  for (const std::string& text : options.texts) items.emplace_back().set_text(text);
  return items;
}

absl::StatusOr<std::vector<v1::ItemScore>> ScoreAll(const ScoreOptions& options,
                                                    const std::vector<v1::ScoreItem>& items) {
  const auto stubs = Connect(options.connection, 1);
  std::vector<v1::ItemScore> scores;
  for (size_t begin = 0; begin < items.size(); begin += options.batch) {
    v1::ScoreRequest request;
    request.set_model(options.connection.model);
    request.set_top_logprobs(options.top_logprobs);
    if (options.add_special_tokens) request.set_add_special_tokens(*options.add_special_tokens);
    for (size_t i = begin; i < items.size() && i < begin + options.batch; ++i) {
      *request.add_items() = items[i];
    }
    grpc::ClientContext context;
    PrepareContext(options.connection, &context);
    v1::ScoreResponse response;
    NS_RETURN_IF_ERROR(FromGrpc(stubs.front()->Score(&context, request, &response)));
    if (response.items_size() != request.items_size()) {
      return absl::InternalError(absl::StrCat("the server answered ", response.items_size(),
                                              " items for ", request.items_size()));
    }
    scores.insert(scores.end(), response.items().begin(), response.items().end());
  }
  return scores;
}

double Perplexity(double sum_logprob, uint64_t tokens) {
  return tokens > 0 ? std::exp(-sum_logprob / static_cast<double>(tokens)) : std::nan("");
}

void PrintTokens(const v1::ItemScore& score) {
  for (const v1::TokenScore& token : score.tokens()) {
    if (token.has_logprob()) {
      std::printf("  %10u  %12.6f  %s\n", token.token_id(), token.logprob(),
                  token.is_argmax() ? "argmax" : "");
    } else {
      std::printf("  %10u  %12s\n", token.token_id(), "-");
    }
  }
}

void PrintTable(const std::vector<v1::ItemScore>& scores, bool tokens) {
  std::printf("%6s %8s %14s %12s %12s %7s\n", "item", "tokens", "sum logprob", "mean", "perplexity",
              "argmax");
  double sum = 0;
  uint64_t count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const v1::ItemScore& score = scores[i];
    const uint32_t n = score.scored_tokens();
    std::printf("%6zu %8u %14.5f %12.6f %12.5f %7s\n", i, n, score.sum_logprob(),
                n > 0 ? score.sum_logprob() / n : std::nan(""), Perplexity(score.sum_logprob(), n),
                score.all_argmax() ? "yes" : "no");
    if (tokens) PrintTokens(score);
    sum += score.sum_logprob();
    count += n;
  }
  std::printf("%6s %8llu %14.5f %12.6f %12.5f\n", "all", static_cast<unsigned long long>(count),
              sum, count > 0 ? sum / static_cast<double>(count) : std::nan(""),
              Perplexity(sum, count));
}

void PrintJson(const std::vector<v1::ItemScore>& scores) {
  json items = json::array();
  double sum = 0;
  uint64_t count = 0;
  for (const v1::ItemScore& score : scores) {
    items.push_back(ToJson(score));
    sum += score.sum_logprob();
    count += score.scored_tokens();
  }
  json all = {{"items", std::move(items)}, {"sum_logprob", sum}, {"scored_tokens", count}};
  all["perplexity"] = count > 0 ? json(Perplexity(sum, count)) : json();
  std::printf("%s\n", all.dump().c_str());
}

}  // namespace

CLI::App* AddScoreCommand(CLI::App* app, ScoreOptions* options) {
  CLI::App* command =
      app->add_subcommand("score", "Log-probabilities and perplexity of given text");
  CLI::Option* text =
      command->add_option("text", options->texts, "texts to score; absent: standard input");
  CLI::Option* file =
      command->add_option("--file", options->file, "score a whole file as one text");
  CLI::Option* pairs = command->add_option("--pairs", options->pairs,
                                           "JSONL of {\"context\", \"continuation\"} (texts or id "
                                           "lists), {\"text\"} or {\"token_ids\"}");
  text->excludes(file)->excludes(pairs);
  file->excludes(pairs);
  command->add_option("--top-logprobs", options->top_logprobs, "alternatives per token (in --json)")
      ->capture_default_str();
  AddSpecialTokensFlags(command, "Options", &options->add_special_tokens);
  command->add_option("--batch", options->batch, "items per call")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--tokens", options->tokens, "a line per token");
  command->add_flag("--json", options->json, "print one JSON object");
  AddConnectionFlags(command, &options->connection);
  return command;
}

absl::StatusOr<std::vector<v1::ScoreItem>> ParseScoreItems(const std::string& jsonl) {
  std::vector<v1::ScoreItem> items;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(jsonl, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const json value = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!ParseItem(value, &items.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": not {\"context\", \"continuation\"} as two texts or two ",
          "id lists, {\"text\"} or {\"token_ids\"}"));
    }
  }
  if (items.empty()) return absl::InvalidArgumentError("nothing to score: no items in the input");
  return items;
}

absl::Status RunScore(const ScoreOptions& options) {
  NS_ASSIGN_OR_RETURN(const auto items, CollectItems(options));
  NS_ASSIGN_OR_RETURN(const auto scores, ScoreAll(options, items));
  if (options.json) {
    PrintJson(scores);
  } else {
    PrintTable(scores, options.tokens);
  }
  return absl::OkStatus();
}

}  // namespace normserve::client
