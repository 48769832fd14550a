// SPDX-License-Identifier: Apache-2.0
// Incremental detokenization: token ids in, text deltas out, each valid UTF-8, whose concatenation
// equals Tokenizer::Decode of all ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace normserve::text {

// One per request; used by one thread. Holds back what is undecided: an incomplete character (bounded:
// see kMaxHeldTokens) or a run of byte-fallback tokens, which decodes only as a whole.
class Detokenizer {
 public:
  // `tokenizer` outlives this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);

  // Text that became decided by `id`; may be empty.
  std::string Append(uint32_t id);
  // The held rest, at the end of the sequence.
  std::string Flush();

  static constexpr size_t kMaxHeldTokens = 64;

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  std::vector<uint32_t> ids_;   // the window that still matters
  size_t emitted_tokens_ = 0;   // prefix of ids_ whose text was emitted
  std::string emitted_text_;    // text of that prefix within the window
};

}  // namespace normserve::text
