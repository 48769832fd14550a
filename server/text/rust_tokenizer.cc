// SPDX-License-Identifier: Apache-2.0
#include "text/rust_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/string_view.h"
#include "text/rust/include/normserve_text.h"

namespace normserve::text {
namespace {

void PutBytes(void* context, const uint8_t* data, size_t size) {
  if (size > 0)
    static_cast<std::string*>(context)->assign(reinterpret_cast<const char*>(data), size);
}
void PutIds(void* context, const uint32_t* data, size_t size) {
  if (size > 0) static_cast<std::vector<uint32_t>*>(context)->assign(data, data + size);
}
NsTextByteSink Into(std::string& text) { return {PutBytes, &text}; }
NsTextIdSink Into(std::vector<uint32_t>& ids) { return {PutIds, &ids}; }
const uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

struct FreeHandle {
  void operator()(NsTextHandle* handle) const { ns_text_free(handle); }
};
using Handle = std::unique_ptr<NsTextHandle, FreeHandle>;

// How special tokens are added around a text.
struct Frame {
  bool by_file = true;  // by the file's own post-processor; else by the next two
  std::optional<uint32_t> first;
  std::optional<uint32_t> last;
};

struct Names {
  std::optional<uint32_t> bos;
  std::string bos_text;
  std::vector<uint32_t> eos;
};

// Any thread.
class RustTokenizer : public Tokenizer {
 public:
  RustTokenizer(std::string_view kind, Handle handle, Names names, Frame frame)
      : kind_(kind), handle_(std::move(handle)), names_(std::move(names)), frame_(frame) {}

  std::string_view kind() const override { return kind_; }
  uint32_t vocab_size() const override { return ns_text_vocab_size(handle_.get()); }

  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               bool add_special) const override {
    std::vector<uint32_t> ids;
    std::string error;
    const int by_file = add_special && frame_.by_file ? 1 : 0;
    if (ns_text_encode(handle_.get(), Bytes(text), text.size(), by_file, Into(ids), Into(error))) {
      return absl::InvalidArgumentError(absl::StrCat("text cannot be encoded: ", error));
    }
    if (add_special && !frame_.by_file) {
      if (frame_.first) ids.insert(ids.begin(), *frame_.first);
      if (frame_.last) ids.push_back(*frame_.last);
    }
    return ids;
  }

  absl::StatusOr<std::string> Decode(absl::Span<const uint32_t> ids,
                                     bool skip_special) const override {
    for (uint32_t id : ids) {
      if (id >= vocab_size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id, " is not below the vocabulary size ", vocab_size()));
      }
    }
    std::string text;
    std::string error;
    if (ns_text_decode(handle_.get(), ids.data(), ids.size(), skip_special ? 1 : 0, Into(text),
                       Into(error))) {
      return absl::InternalError(absl::StrCat("ids cannot be decoded: ", error));
    }
    return text;
  }

  std::string Piece(uint32_t id) const override {
    std::string text;
    std::string error;
    ns_text_piece(handle_.get(), id, Into(text), Into(error));
    return text;
  }
  bool IsByteFallback(uint32_t id) const override { return HasFlag(id, NS_TEXT_BYTE_FALLBACK); }
  bool IsSpecial(uint32_t id) const override { return HasFlag(id, NS_TEXT_SPECIAL); }
  std::optional<uint32_t> bos_id() const override { return names_.bos; }
  std::string_view bos_text() const override { return names_.bos_text; }
  std::vector<uint32_t> eos_ids() const override { return names_.eos; }

 private:
  bool HasFlag(uint32_t id, uint32_t flag) const {
    return (ns_text_flags(handle_.get(), id) & flag) != 0;
  }

  const std::string_view kind_;  // a literal
  const Handle handle_;
  const Names names_;
  const Frame frame_;
};

absl::StatusOr<Handle> Checked(const std::string& path, int failed, NsTextHandle* raw,
                               const std::string& error) {
  Handle handle(raw);
  if (failed) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error));
  return handle;
}

absl::StatusOr<std::optional<uint32_t>> Find(const NsTextHandle* handle, const std::string& path,
                                             std::string_view key,
                                             const std::optional<std::string>& text) {
  if (!text) return std::optional<uint32_t>();
  const int64_t id = ns_text_id(handle, Bytes(*text), text->size());
  if (id < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": lacks the token \"", *text,
                                                   "\" that tokenizer_config.json or "
                                                   "special_tokens_map.json calls ",
                                                   base::Absl(key)));
  }
  return std::optional<uint32_t>(static_cast<uint32_t>(id));
}

absl::StatusOr<Names> FindNames(const NsTextHandle* handle, const std::string& path,
                                const SpecialTokens& specials) {
  Names names;
  NS_ASSIGN_OR_RETURN(names.bos, Find(handle, path, "bos_token", specials.bos));
  names.bos_text = specials.bos.value_or("");
  NS_ASSIGN_OR_RETURN(const std::optional<uint32_t> eos,
                      Find(handle, path, "eos_token", specials.eos));
  if (eos) names.eos.push_back(*eos);
  return names;
}

// BOS when no file names it: the special token that the post-processor puts first.
void GuessBos(const NsTextHandle* handle, Names& names) {
  std::vector<uint32_t> plain;
  std::vector<uint32_t> framed;
  std::string error;
  if (ns_text_encode(handle, Bytes("a"), 1, 0, Into(plain), Into(error)) ||
      ns_text_encode(handle, Bytes("a"), 1, 1, Into(framed), Into(error)) ||
      framed.size() <= plain.size() ||
      (ns_text_flags(handle, framed.front()) & NS_TEXT_SPECIAL) == 0) {
    return;
  }
  names.bos = framed.front();
  ns_text_piece(handle, framed.front(), Into(names.bos_text), Into(error));
}

// MATCHES: `transformers`: either key present means that both, and not the file, say what is added.
Frame FrameFor(const Names& names, const SpecialTokens& specials, bool file_has_frame,
               bool add_bos_by_default) {
  if (file_has_frame && !specials.add_bos && !specials.add_eos) return {};
  Frame frame;
  frame.by_file = false;
  if (specials.add_bos.value_or(add_bos_by_default)) frame.first = names.bos;
  if (specials.add_eos.value_or(false) && !names.eos.empty()) frame.last = names.eos.front();
  return frame;
}

// In the order of their ids.
std::vector<std::string> Llama3SpecialTokens(Llama3Release release) {
  constexpr size_t kCount = 256;
  std::vector<std::string> texts = {"<|begin_of_text|>", "<|end_of_text|>"};
  int reserved = 0;
  const auto reserve = [&] {
    texts.push_back(absl::StrCat("<|reserved_special_token_", reserved++, "|>"));
  };
  const auto name_since_31 = [&](const char* text) {
    if (release == Llama3Release::k31) {
      texts.emplace_back(text);
    } else {
      reserve();
    }
  };
  reserve();
  reserve();
  name_since_31("<|finetune_right_pad_id|>");
  reserve();
  texts.insert(texts.end(), {"<|start_header_id|>", "<|end_header_id|>"});
  name_since_31("<|eom_id|>");
  texts.emplace_back("<|eot_id|>");
  name_since_31("<|python_tag|>");
  while (texts.size() < kCount) reserve();
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             const SpecialTokens& specials) {
  NS_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  const std::string list = JsonList(specials.all);
  NsTextHandle* raw = nullptr;
  std::string error;
  const int failed = ns_text_load_tokenizer_json(Bytes(file), file.size(), Bytes(list), list.size(),
                                                 &raw, Into(error));
  NS_ASSIGN_OR_RETURN(Handle handle, Checked(path, failed, raw, error));
  NS_ASSIGN_OR_RETURN(Names names, FindNames(handle.get(), path, specials));
  if (!names.bos) GuessBos(handle.get(), names);
  const Frame frame = FrameFor(names, specials, /*file_has_frame=*/true, false);
  return std::make_unique<RustTokenizer>("tokenizer.json", std::move(handle), std::move(names),
                                         frame);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2(const std::string& vocab_path,
                                                    const std::string& merges_path,
                                                    const SpecialTokens& specials) {
  NS_ASSIGN_OR_RETURN(const std::string vocab, ReadFile(vocab_path));
  NS_ASSIGN_OR_RETURN(const std::string merges, ReadFile(merges_path));
  SpecialTokens named = specials;
  named.all.emplace_back("<|endoftext|>");
  const std::string list = JsonList(named.all);
  NsTextHandle* raw = nullptr;
  std::string error;
  const int failed = ns_text_load_gpt2(Bytes(vocab), vocab.size(), Bytes(merges), merges.size(),
                                       Bytes(list), list.size(), &raw, Into(error));
  NS_ASSIGN_OR_RETURN(Handle handle,
                      Checked(absl::StrCat(vocab_path, " with merges.txt"), failed, raw, error));
  if (!named.bos) named.bos = "<|endoftext|>";
  if (!named.eos) named.eos = "<|endoftext|>";
  NS_ASSIGN_OR_RETURN(Names names, FindNames(handle.get(), vocab_path, named));
  const Frame frame = FrameFor(names, named, /*file_has_frame=*/false, false);
  return std::make_unique<RustTokenizer>("gpt2", std::move(handle), std::move(names), frame);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2Builtin(const SpecialTokens& specials) {
  NsTextHandle* raw = nullptr;
  std::string error;
  const int failed = ns_text_load_gpt2_builtin(&raw, Into(error));
  const std::string source = "the built-in gpt2 tokenizer";
  NS_ASSIGN_OR_RETURN(Handle handle, Checked(source, failed, raw, error));
  SpecialTokens named = specials;
  if (!named.bos) named.bos = "<|endoftext|>";
  if (!named.eos) named.eos = "<|endoftext|>";
  NS_ASSIGN_OR_RETURN(Names names, FindNames(handle.get(), source, named));
  const Frame frame = FrameFor(names, named, /*file_has_frame=*/false, false);
  return std::make_unique<RustTokenizer>("gpt2", std::move(handle), std::move(names), frame);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                        const std::string& bytes,
                                                        const SpecialTokens& specials,
                                                        Llama3Release release) {
  const std::string list = JsonList(Llama3SpecialTokens(release));
  NsTextHandle* raw = nullptr;
  std::string error;
  const int failed = ns_text_load_tiktoken(Bytes(bytes), bytes.size(), Bytes(list), list.size(),
                                           &raw, Into(error));
  NS_ASSIGN_OR_RETURN(Handle handle, Checked(path, failed, raw, error));
  SpecialTokens named = specials;
  if (!named.bos) named.bos = "<|begin_of_text|>";
  const bool eos_by_config = named.eos.has_value();
  if (!named.eos) named.eos = "<|end_of_text|>";
  NS_ASSIGN_OR_RETURN(Names names, FindNames(handle.get(), path, named));
  // MATCHES: the models' own code stops at any of these; Llama 3 has no <|eom_id|>.
  for (const std::string_view text : {"<|eom_id|>", "<|eot_id|>"}) {
    const int64_t id = ns_text_id(handle.get(), Bytes(text), text.size());
    if (!eos_by_config && id >= 0) names.eos.push_back(static_cast<uint32_t>(id));
  }
  const Frame frame = FrameFor(names, named, /*file_has_frame=*/false, /*add_bos_by_default=*/true);
  return std::make_unique<RustTokenizer>("tiktoken", std::move(handle), std::move(names), frame);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                             const std::string& bytes,
                                                             const SpecialTokens& specials) {
  NsTextHandle* raw = nullptr;
  std::string error;
  const int failed = ns_text_load_sentencepiece(Bytes(bytes), bytes.size(), &raw, Into(error));
  NS_ASSIGN_OR_RETURN(Handle handle, Checked(path, failed, raw, error));
  NS_ASSIGN_OR_RETURN(Names names, FindNames(handle.get(), path, specials));
  const int64_t bos = ns_text_bos(handle.get());
  if (!names.bos && bos >= 0) {
    names.bos = static_cast<uint32_t>(bos);
    ns_text_piece(handle.get(), *names.bos, Into(names.bos_text), Into(error));
  }
  const int64_t eos = ns_text_eos(handle.get());
  if (names.eos.empty() && eos >= 0) names.eos.push_back(static_cast<uint32_t>(eos));
  // MATCHES: Llama 2's own code begins every prompt with BOS.
  const Frame frame =
      FrameFor(names, specials, /*file_has_frame=*/false, /*add_bos_by_default=*/true);
  return std::make_unique<RustTokenizer>("sentencepiece", std::move(handle), std::move(names),
                                         frame);
}

}  // namespace normserve::text
