// SPDX-License-Identifier: Apache-2.0
// The tokenizers, whose work is done by the Rust crate in text/rust. This is the C++ side of its C
// ABI plus the rules for BOS and EOS. Private to text.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace normserve::text {

// Each takes the path(s) of its file(s) and what the folder's configuration says; errors name a
// file.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             const SpecialTokens& specials);
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2(const std::string& vocab_path,
                                                    const std::string& merges_path,
                                                    const SpecialTokens& specials);
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2Builtin(const SpecialTokens& specials);
// Whose names the 256 special tokens after a list of ranks have. Llama 3.1 ships Llama 3's file and
// gives three of its reserved tokens a use.
enum class Llama3Release { k30, k31 };
// `bytes` is the content of the file at `path`, which is a list of ranks.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                        const std::string& bytes,
                                                        const SpecialTokens& specials,
                                                        Llama3Release release);
// Likewise of a SentencePiece model.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                             const std::string& bytes,
                                                             const SpecialTokens& specials);

}  // namespace normserve::text
