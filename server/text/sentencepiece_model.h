// SPDX-License-Identifier: Apache-2.0
// The SentencePiece library behind types of our own: its header declares absl::string_view its own
// way, so no file may include both it and abseil. Private to text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace normserve::text {

// Any thread.
class SentencePieceModel {
 public:
  // A null pointer and a sentence in `error` when `serialized` is not a usable model.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view serialized, std::string& error);
  ~SentencePieceModel();

  uint32_t size() const;
  std::string Piece(uint32_t id) const;
  bool IsControl(uint32_t id) const;
  bool IsByte(uint32_t id) const;
  bool IsUnused(uint32_t id) const;
  int64_t Id(std::string_view piece) const;  // -1 when the model does not have it
  int bos_id() const;  // -1: none
  int eos_id() const;  // -1: none

  // The library's own encoding and decoding; false when it fails.
  bool Encode(std::string_view text, std::vector<uint32_t>& ids) const;
  bool Decode(const std::vector<int>& ids, std::string& text) const;

 private:
  struct Impl;
  explicit SentencePieceModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace normserve::text
