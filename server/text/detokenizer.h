// SPDX-License-Identifier: Apache-2.0
// Incremental detokenization: token ids in, text deltas out, each valid UTF-8, whose concatenation
// equals Tokenizer::Decode of all ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace normserve::text {

// One per request; used by one thread. Holds back what is undecided: an incomplete character
// (bounded: see kMaxHeldTokens) or a run of byte-fallback tokens, which decodes only as a whole.
//
// The only case in which the joined deltas may differ from the whole decode: a run of more than
// kMaxHeldTokens byte-fallback tokens that is not UTF-8. Its parts are then decoded one by one.
class Detokenizer {
 public:
  // `tokenizer` outlives this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);

  // Text that became decided by `id`; may be empty. An id that the tokenizer does not have (a
  // padding row of the model's vocabulary) has no text.
  std::string Append(uint32_t id);
  // The held rest, at the end of the sequence.
  std::string Flush();

  static constexpr size_t kMaxHeldTokens = 64;

 private:
  bool HasNoText(uint32_t id) const;
  std::string Decode(size_t begin, size_t end) const;  // of ids_[begin, end)
  std::string Emit(const std::string& text, size_t held_bytes);
  void ShrinkWindow(const std::string& text);
  std::string SplitLongRun();
  uint32_t AnyTokenWithText() const;

  const Tokenizer& tokenizer_;
  const bool skip_special_;
  // The window: the last tokens whose text was emitted, then those that are held. There is always
  // one with text before the held ones (but at the start), since decoders treat a text's start
  // differently.
  std::vector<uint32_t> ids_;
  std::string emitted_text_;  // the part of the window's decode that was emitted
  bool has_text_ = false;     // that decode is not empty
  bool run_open_ = false;     // the window ends in a run of byte-fallback tokens, which
  size_t run_begin_ = 0;      // begins here
};

}  // namespace normserve::text
