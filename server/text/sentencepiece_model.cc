// SPDX-License-Identifier: Apache-2.0
#include "text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace normserve::text {

struct SentencePieceModel::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view serialized,
                                                             std::string& error) {
  auto impl = std::make_unique<Impl>();
  const auto status = impl->processor.LoadFromSerializedProto(serialized);
  if (!status.ok()) {
    error = status.ToString();
    return nullptr;
  }
  if (impl->processor.GetPieceSize() <= 0) {
    error = "the model has no pieces";
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(impl)));
}

uint32_t SentencePieceModel::size() const {
  return static_cast<uint32_t>(impl_->processor.GetPieceSize());
}
std::string SentencePieceModel::Piece(uint32_t id) const {
  return impl_->processor.IdToPiece(static_cast<int>(id));
}
bool SentencePieceModel::IsControl(uint32_t id) const {
  return impl_->processor.IsControl(static_cast<int>(id));
}
bool SentencePieceModel::IsByte(uint32_t id) const {
  return impl_->processor.IsByte(static_cast<int>(id));
}
bool SentencePieceModel::IsUnused(uint32_t id) const {
  return impl_->processor.IsUnused(static_cast<int>(id));
}
int64_t SentencePieceModel::Id(std::string_view piece) const {
  const int id = impl_->processor.PieceToId(piece);
  if (id < 0 || impl_->processor.IdToPiece(id) != piece) return -1;
  return id;
}
int SentencePieceModel::bos_id() const { return impl_->processor.bos_id(); }
int SentencePieceModel::eos_id() const { return impl_->processor.eos_id(); }

bool SentencePieceModel::Encode(std::string_view text, std::vector<uint32_t>& ids) const {
  std::vector<int> part;
  if (!impl_->processor.Encode(text, &part).ok()) return false;
  ids.insert(ids.end(), part.begin(), part.end());
  return true;
}

bool SentencePieceModel::Decode(const std::vector<int>& ids, std::string& text) const {
  return impl_->processor.Decode(ids, &text).ok();
}

}  // namespace normserve::text
