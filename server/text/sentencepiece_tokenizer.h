// SPDX-License-Identifier: Apache-2.0
// Llama 2's tokenizer.model and others like it. Private to text.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace normserve::text {

// `bytes` is the content of the file at `path`, which errors name.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                             const std::string& bytes,
                                                             const SpecialTokens& specials);

}  // namespace normserve::text
