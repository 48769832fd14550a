// SPDX-License-Identifier: Apache-2.0
// DIFFERS: the SentencePiece library takes "</s>" in a text for five characters; our contract is that
// text which spells a special token becomes it, as in `transformers`. So a text is cut at the texts of
// control pieces, and each part is encoded as a text of its own (with its own leading space).
// Decoding with the special tokens does the reverse; without them it is the library's.
#include "text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/string_view.h"
#include "text/sentencepiece_model.h"
#include "text/utf8.h"

namespace normserve::text {
namespace {

struct Control {
  std::string text;
  uint32_t id;
};

struct Frame {
  std::optional<uint32_t> bos;
  std::optional<uint32_t> eos;
  bool add_bos = true;
  bool add_eos = false;
};

// Any thread.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, Frame frame)
      : model_(std::move(model)), frame_(frame) {
    for (uint32_t id = 0; id < model_->size(); ++id) {
      if (model_->IsControl(id)) controls_.push_back({model_->Piece(id), id});
    }
    if (frame_.bos) bos_text_ = model_->Piece(*frame_.bos);
  }

  std::string_view kind() const override { return "sentencepiece"; }
  uint32_t vocab_size() const override { return model_->size(); }

  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               bool add_special) const override {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid < text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("text cannot be encoded: invalid UTF-8 after byte ", valid));
    }
    std::vector<uint32_t> ids;
    if (add_special && frame_.add_bos && frame_.bos) ids.push_back(*frame_.bos);
    while (!text.empty()) {
      const auto [at, control] = NextControl(text);
      if (at > 0 && !model_->Encode(text.substr(0, at), ids)) {
        return absl::InvalidArgumentError("text cannot be encoded by its SentencePiece model");
      }
      if (control != nullptr) ids.push_back(control->id);
      text.remove_prefix(at + (control != nullptr ? control->text.size() : 0));
    }
    if (add_special && frame_.add_eos && frame_.eos) ids.push_back(*frame_.eos);
    return ids;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const uint32_t> ids,
                                     bool skip_special) const override {
    std::string text;
    std::vector<int> part;
    for (uint32_t id : ids) {
      if (id >= vocab_size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id, " is not below the vocabulary size ", vocab_size()));
      }
      if (!skip_special && model_->IsControl(id)) {
        NS_RETURN_IF_ERROR(DecodePart(part, text));
        text += model_->Piece(id);
      } else {
        part.push_back(static_cast<int>(id));
      }
    }
    NS_RETURN_IF_ERROR(DecodePart(part, text));
    return text;
  }

  std::string Piece(uint32_t id) const override {
    return id < vocab_size() ? model_->Piece(id) : std::string();
  }
  bool IsByteFallback(uint32_t id) const override {
    return id < vocab_size() && model_->IsByte(id);
  }
  bool IsSpecial(uint32_t id) const override { return id < vocab_size() && model_->IsControl(id); }
  std::optional<uint32_t> bos_id() const override { return frame_.bos; }
  std::string_view bos_text() const override { return bos_text_; }
  std::vector<uint32_t> eos_ids() const override {
    return frame_.eos ? std::vector<uint32_t>{*frame_.eos} : std::vector<uint32_t>();
  }

 private:
  // The control piece whose text comes first in `text` (of several there the longest), and where.
  std::pair<size_t, const Control*> NextControl(std::string_view text) const {
    std::pair<size_t, const Control*> next = {text.size(), nullptr};
    for (const Control& control : controls_) {
      if (control.text.empty()) continue;
      const size_t at = text.find(control.text);
      const bool longer = next.second != nullptr && at == next.first &&
                          control.text.size() > next.second->text.size();
      if (at < next.first || longer) next = {at, &control};
    }
    return next;
  }

  absl::Status DecodePart(std::vector<int>& part, std::string& text) const {
    if (part.empty()) return absl::OkStatus();
    std::string decoded;
    if (!model_->Decode(part, decoded)) {
      return absl::InternalError("ids cannot be decoded by their SentencePiece model");
    }
    part.clear();
    text += decoded;
    return absl::OkStatus();
  }

  const std::unique_ptr<SentencePieceModel> model_;
  const Frame frame_;
  std::vector<Control> controls_;
  std::string bos_text_;
};

absl::StatusOr<std::optional<uint32_t>> Find(const SentencePieceModel& model,
                                             const std::string& path, std::string_view key,
                                             const std::optional<std::string>& text,
                                             int model_id) {
  if (!text) {
    return model_id < 0 ? std::optional<uint32_t>() : static_cast<uint32_t>(model_id);
  }
  const int64_t id = model.Id(*text);
  if (id < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": lacks the token \"", *text, "\" that tokenizer_config.json or "
        "special_tokens_map.json calls ", base::Absl(key)));
  }
  return std::optional<uint32_t>(static_cast<uint32_t>(id));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                             const std::string& bytes,
                                                             const SpecialTokens& specials) {
  std::string error;
  std::unique_ptr<SentencePieceModel> model = SentencePieceModel::Load(bytes, error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": neither tiktoken ranks nor a SentencePiece model (",
                     absl::StrReplaceAll(error, {{"\n", " "}}), ")"));
  }
  Frame frame;
  NS_ASSIGN_OR_RETURN(frame.bos, Find(*model, path, "bos_token", specials.bos, model->bos_id()));
  NS_ASSIGN_OR_RETURN(frame.eos, Find(*model, path, "eos_token", specials.eos, model->eos_id()));
  // MATCHES: Llama 2's own code begins every prompt with BOS.
  frame.add_bos = specials.add_bos.value_or(true);
  frame.add_eos = specials.add_eos.value_or(false);
  return std::make_unique<SentencePieceTokenizer>(std::move(model), frame);
}

}  // namespace normserve::text
