// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, exact to the reference implementations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace normserve::text {

// Immutable after loading; any thread may call any method.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "tokenizer.json", "sentencepiece", "tiktoken" or "gpt2".
  virtual std::string_view kind() const = 0;
  // Ids are in [0, vocab_size()). May differ from the model's vocabulary (padding rows).
  virtual uint32_t vocab_size() const = 0;

  // `text` must be UTF-8 (else INVALID_ARGUMENT). add_special: the tokenizer's own special tokens
  // (BOS) as its files say. Text that spells a special token becomes that token.
  virtual absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                                       bool add_special) const = 0;
  // Whole decode; always valid UTF-8, invalid sequences are U+FFFD. Unknown ids (>= vocab_size) are
  // INVALID_ARGUMENT.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const uint32_t> ids,
                                             bool skip_special) const = 0;
  // The vocabulary's own text of one id; empty for an unused id.
  virtual std::string Piece(uint32_t id) const = 0;
  // Whether the id is a byte-fallback token (<0xNN>): a run of them decodes only as a whole.
  virtual bool IsByteFallback(uint32_t id) const = 0;
  virtual bool IsSpecial(uint32_t id) const = 0;

  virtual std::optional<uint32_t> bos_id() const = 0;
  // Text of the BOS token, "" when there is none; for the double-BOS rule.
  virtual std::string_view bos_text() const = 0;
  // End-of-sequence ids that the tokenizer's own files name.
  virtual std::vector<uint32_t> eos_ids() const = 0;

  // The rule of the API (docs): absent add_special adds special tokens unless `text` already begins
  // with the BOS token's text.
  absl::StatusOr<std::vector<uint32_t>> EncodePrompt(std::string_view text,
                                                     std::optional<bool> add_special) const;
};

// Loads whichever tokenizer the folder has: tokenizer.json first, then tokenizer.model
// (SentencePiece or tiktoken, told apart by content), then vocab.json + merges.txt (GPT-2). A null
// pointer when the folder has none of these files; an error naming the file when one is there and
// cannot be used.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& directory);

}  // namespace normserve::text
