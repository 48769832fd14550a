// SPDX-License-Identifier: Apache-2.0
// A tokenizer for tests of other folders: one token per byte plus BOS and EOS, with no files and no
// Rust behind it. It follows the contract of text/tokenizer.h; it is not a model of any real
// tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "text/tokenizer.h"

namespace normserve::text {

// Ids 0..255 are the bytes, 256 is BOS "<s>", 257 is EOS "</s>"; 258.. are the given extra pieces
// (whole words, so that a test can make one token carry a long or broken text), used by Decode
// only. Any thread.
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr uint32_t kBos = 256;
  static constexpr uint32_t kEos = 257;
  static constexpr uint32_t kFirstExtra = 258;

  explicit FakeTokenizer(std::vector<std::string> extra_pieces = {},
                         bool bytes_are_fallback = false)
      : extra_(std::move(extra_pieces)), bytes_are_fallback_(bytes_are_fallback) {}

  std::string_view kind() const override { return "fake"; }
  uint32_t vocab_size() const override {
    return kFirstExtra + static_cast<uint32_t>(extra_.size());
  }

  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               bool add_special) const override {
    if (ToValidUtf8(text) != text) return absl::InvalidArgumentError("text is not valid UTF-8");
    std::vector<uint32_t> ids;
    if (add_special) ids.push_back(kBos);
    for (size_t i = 0; i < text.size();) {
      const std::string_view rest = text.substr(i);
      if (StartsWith(rest, kBosText)) {
        ids.push_back(kBos);
        i += kBosText.size();
      } else if (StartsWith(rest, kEosText)) {
        ids.push_back(kEos);
        i += kEosText.size();
      } else {
        ids.push_back(static_cast<unsigned char>(text[i++]));
      }
    }
    return ids;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const uint32_t> ids,
                                     bool skip_special) const override {
    std::string bytes;
    for (uint32_t id : ids) {
      if (id >= vocab_size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id, " is not below the vocabulary size ", vocab_size()));
      }
      if (!(skip_special && IsSpecial(id))) bytes += RawPiece(id);
    }
    return ToValidUtf8(bytes);
  }

  std::string Piece(uint32_t id) const override {
    return id < vocab_size() ? ToValidUtf8(RawPiece(id)) : std::string();
  }
  bool IsByteFallback(uint32_t id) const override { return bytes_are_fallback_ && id < 256; }
  bool IsSpecial(uint32_t id) const override { return id == kBos || id == kEos; }
  std::optional<uint32_t> bos_id() const override { return kBos; }
  std::string_view bos_text() const override { return kBosText; }
  std::vector<uint32_t> eos_ids() const override { return {kEos}; }

  // Each maximal invalid part becomes one U+FFFD, as in the reference decoders.
  static std::string ToValidUtf8(std::string_view bytes) {
    std::string out;
    for (size_t i = 0; i < bytes.size();) {
      const auto [length, valid] = NextCharacter(bytes.substr(i));
      if (valid) {
        out.append(bytes.substr(i, length));
      } else {
        out += "\xEF\xBF\xBD";
      }
      i += length;
    }
    return out;
  }

 private:
  static constexpr std::string_view kBosText = "<s>";
  static constexpr std::string_view kEosText = "</s>";

  static bool StartsWith(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
  }

  std::string RawPiece(uint32_t id) const {
    if (id < 256) return std::string(1, static_cast<char>(id));
    if (id == kBos) return std::string(kBosText);
    if (id == kEos) return std::string(kEosText);
    return extra_[id - kFirstExtra];
  }

  // Bytes of the first character of `s` (not empty), or of its maximal invalid part.
  static std::pair<size_t, bool> NextCharacter(std::string_view s) {
    const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned char lead = at(0);
    if (lead < 0x80) return {1, true};
    if (lead < 0xC2 || lead > 0xF4) return {1, false};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length; ++i) {
      if (i >= s.size()) return {i, false};
      const unsigned char least = i == 1 ? low : 0x80;
      const unsigned char most = i == 1 ? high : 0xBF;
      if (at(i) < least || at(i) > most) return {i, false};
    }
    return {length, true};
  }

  std::vector<std::string> extra_;
  bool bytes_are_fallback_;
};

}  // namespace normserve::text
