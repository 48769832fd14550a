// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <algorithm>

#include "absl/types/span.h"
#include "text/utf8.h"

namespace normserve::text {
namespace {

// An incomplete character is at most 3 bytes, each of which a decoder may show as U+FFFD.
constexpr size_t kMaxHeldCharacters = 3;
// A window that ends undecided is cut from this many tokens to so many. What is kept is more than
// the bytes behind the held characters: 3 characters of 3 bytes.
constexpr size_t kLongWindow = 32;
constexpr size_t kCutWindow = 16;

// Bytes of the U+FFFD (at most kMaxHeldCharacters) at the end of `text`.
size_t UndecidedBytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < kMaxHeldCharacters * kReplacement.size() &&
         text.size() >= bytes + kReplacement.size() &&
         text.substr(text.size() - bytes - kReplacement.size(), kReplacement.size()) ==
             kReplacement) {
    bytes += kReplacement.size();
  }
  return bytes;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return 0;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

bool Detokenizer::HasNoText(uint32_t id) const {
  return (skip_special_ && tokenizer_.IsSpecial(id)) || tokenizer_.Piece(id).empty();
}

std::string Detokenizer::Decode(size_t begin, size_t end) const {
  // Append lets only known ids in, for which decoding cannot fail.
  return tokenizer_.Decode(absl::MakeConstSpan(ids_.data() + begin, end - begin), skip_special_)
      .value_or(std::string());
}

std::string Detokenizer::Append(uint32_t id) {
  if (id >= tokenizer_.vocab_size()) return "";
  const bool is_byte = tokenizer_.IsByteFallback(id);
  const bool no_text = !is_byte && HasNoText(id);
  // Whether a token without text ends a run of bytes is the decoder's business: it goes along.
  if (is_byte || (run_open_ && no_text)) {
    if (!run_open_) run_begin_ = ids_.size();
    run_open_ = true;
    ids_.push_back(id);
    return ids_.size() - run_begin_ > kMaxHeldTokens ? SplitLongRun() : "";
  }
  // Elsewhere it changes nothing, but that some decoders count it as the text's first token.
  const bool is_skipped = skip_special_ && tokenizer_.IsSpecial(id);
  if (is_skipped || (no_text && (has_text_ || ids_.size() >= kLongWindow))) return "";
  run_open_ = false;
  ids_.push_back(id);
  const std::string text = Decode(0, ids_.size());
  has_text_ = !text.empty();
  std::string delta = Emit(text, UndecidedBytes(text));
  ShrinkWindow(text);
  return delta;
}

std::string Detokenizer::Emit(const std::string& text, size_t held_bytes) {
  if (text.compare(0, emitted_text_.size(), emitted_text_) != 0) return "";
  const size_t fresh = text.size() - emitted_text_.size();
  std::string delta = text.substr(emitted_text_.size(), fresh - std::min(fresh, held_bytes));
  emitted_text_ += delta;
  return delta;
}

void Detokenizer::ShrinkWindow(const std::string& text) {
  const bool extends = text.compare(0, emitted_text_.size(), emitted_text_) == 0;
  const std::string held = extends ? text.substr(emitted_text_.size()) : "";
  if (!held.empty() && ids_.size() <= kLongWindow) return;
  size_t begin = ids_.size() - (held.empty() ? 1 : std::min(kCutWindow, ids_.size()));
  for (;; --begin) {
    // A part of a run of bytes may decode to something else than within the run.
    const std::string context =
        tokenizer_.IsByteFallback(ids_[begin]) ? "" : Decode(begin, ids_.size());
    if (context.size() > held.size() && EndsWith(context, held)) {
      ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(begin));
      emitted_text_ = context.substr(0, context.size() - held.size());
      return;
    }
    if (begin == 0) break;
  }
  // Nothing with text yet, or a decoder that changes what it said: never let that grow.
  if (ids_.size() > kMaxHeldTokens) {
    ids_.erase(ids_.begin(), ids_.end() - static_cast<ptrdiff_t>(kCutWindow));
    emitted_text_ = Decode(0, ids_.size());
  }
}

std::string Detokenizer::SplitLongRun() {
  std::string bytes;
  for (size_t i = run_begin_; i < ids_.size(); ++i) {
    if (!tokenizer_.IsByteFallback(ids_[i])) continue;
    const std::string piece = tokenizer_.Piece(ids_[i]);  // <0xNN>
    bytes +=
        piece.size() == 6 ? static_cast<char>(HexDigit(piece[3]) * 16 + HexDigit(piece[4])) : '?';
  }
  size_t split = ids_.size();
  for (size_t tail = IncompleteUtf8Tail(bytes); tail > 0;) {
    if (tokenizer_.IsByteFallback(ids_[--split])) --tail;
  }
  std::string delta = Emit(Decode(0, split), 0);
  std::vector<uint32_t> rest(ids_.begin() + static_cast<ptrdiff_t>(split), ids_.end());
  ids_.resize(run_begin_);
  emitted_text_ = Decode(0, ids_.size());
  if (emitted_text_.empty()) {
    ids_.assign(1, AnyTokenWithText());
    emitted_text_ = Decode(0, ids_.size());
  }
  has_text_ = true;
  run_begin_ = ids_.size();
  ids_.insert(ids_.end(), rest.begin(), rest.end());
  return delta;
}

uint32_t Detokenizer::AnyTokenWithText() const {
  for (uint32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
    if (tokenizer_.IsByteFallback(id) || tokenizer_.IsSpecial(id)) continue;
    const auto text = tokenizer_.Decode({id}, skip_special_);
    if (text.ok() && !text->empty() && UndecidedBytes(*text) == 0) return id;
  }
  return 0;
}

std::string Detokenizer::Flush() {
  std::string rest = Emit(Decode(0, ids_.size()), 0);
  ids_.clear();
  emitted_text_.clear();
  run_open_ = false;
  has_text_ = false;
  return rest;
}

}  // namespace normserve::text
