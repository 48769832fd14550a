// SPDX-License-Identifier: Apache-2.0
// For compare_real.py: tokenizes over a pipe. Usage: tokenizer_pipe FOLDER. One JSON object a line
// in,
// {"text": ...} or {"ids": [...], "skip_special": bool}; one a line out, {"ids"}, or {"text",
// "streamed"}, or {"error"}. Not a product.
#include <iostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using nlohmann::json;
using normserve::text::Detokenizer;
using normserve::text::Tokenizer;

json Error(const absl::Status& status) { return {{"error", status.ToString()}}; }

json Answer(const Tokenizer& tokenizer, const json& question) {
  if (question.contains("text")) {
    const auto ids = tokenizer.Encode(question["text"].get<std::string>(), false);
    return ids.ok() ? json{{"ids", *ids}} : Error(ids.status());
  }
  const auto ids = question["ids"].get<std::vector<uint32_t>>();
  const bool skip = question["skip_special"].get<bool>();
  const auto text = tokenizer.Decode(ids, skip);
  if (!text.ok()) return Error(text.status());
  Detokenizer detokenizer(tokenizer, skip);
  std::string streamed;
  for (uint32_t id : ids) streamed += detokenizer.Append(id);
  streamed += detokenizer.Flush();
  return {{"text", *text}, {"streamed", streamed}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto tokenizer = normserve::text::LoadTokenizer(argv[1]);
  if (!tokenizer.ok() || *tokenizer == nullptr) {
    std::cerr << tokenizer.status().ToString() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const json question = json::parse(line, nullptr, false);
    if (question.is_discarded()) return 1;
    std::cout << Answer(**tokenizer, question).dump() << "\n";
  }
  return 0;
}
