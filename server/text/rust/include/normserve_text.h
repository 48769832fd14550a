/* SPDX-License-Identifier: Apache-2.0
 * The C ABI of the Rust crate normserve_text, in which all tokenizers are.
 * Only text/rust_tokenizer.cc includes it. It knows no files: callers read them.
 *
 * Ownership: the handle is the only memory that crosses the border; ns_text_free releases it.
 * Results and error texts are given to the caller's sink during the call and belong to Rust: the
 * sink copies. A sink must not throw and must not call back. Inputs are borrowed for the call.
 *
 * Threads: a loaded handle is immutable; any thread may use it, until it is freed.
 *
 * Errors: functions that return int return 0, or 1 after giving one sentence (UTF-8) to `error`.
 * A Rust panic never crosses the border; it becomes such an error. */
#ifndef NORMSERVE_TEXT_H_
#define NORMSERVE_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct NsTextHandle NsTextHandle;

/* Called at most once per function call. `data` may be null when size is 0. */
typedef struct NsTextByteSink {
  void (*put)(void* context, const uint8_t* data, size_t size);
  void* context;
} NsTextByteSink;
typedef struct NsTextIdSink {
  void (*put)(void* context, const uint32_t* data, size_t size);
  void* context;
} NsTextIdSink;

/* Bits of ns_text_flags. */
enum {
  NS_TEXT_USED = 1,          /* the vocabulary has this id */
  NS_TEXT_SPECIAL = 2,       /* skip_special drops it */
  NS_TEXT_BYTE_FALLBACK = 4, /* <0xNN>; a run of them decodes only as a whole */
};

/* A tokenizer.json. `specials`: a JSON list of token texts which, if the vocabulary has them, are
 * special even where the file does not say so (those that tokenizer_config.json names). */
int ns_text_load_tokenizer_json(const uint8_t* json, size_t json_size, const uint8_t* specials,
                                size_t specials_size, NsTextHandle** out, NsTextByteSink error);
/* GPT-2: a vocab.json and a merges.txt; `specials` as above. */
int ns_text_load_gpt2(const uint8_t* vocab, size_t vocab_size, const uint8_t* merges,
                      size_t merges_size, const uint8_t* specials, size_t specials_size,
                      NsTextHandle** out, NsTextByteSink error);
/* GPT-2's own vocabulary, compiled in (50,257 ids). */
int ns_text_load_gpt2_builtin(NsTextHandle** out, NsTextByteSink error);
/* A tiktoken file of "base64 rank" lines, split by Llama 3's pattern. `specials`: a JSON list of
 * the texts of the special tokens, whose ids follow the last rank in this order. */
int ns_text_load_tiktoken(const uint8_t* ranks, size_t ranks_size, const uint8_t* specials,
                          size_t specials_size, NsTextHandle** out, NsTextByteSink error);
/* A SentencePiece BPE model without a normalization table. */
int ns_text_load_sentencepiece(const uint8_t* model, size_t model_size, NsTextHandle** out,
                               NsTextByteSink error);
void ns_text_free(NsTextHandle* handle);

/* One more than the largest id. */
uint32_t ns_text_vocab_size(const NsTextHandle* handle);
/* 0 for an id outside the vocabulary. */
uint32_t ns_text_flags(const NsTextHandle* handle, uint32_t id);
/* What the model file itself (SentencePiece) calls BOS and EOS, or -1. */
int64_t ns_text_bos(const NsTextHandle* handle);
int64_t ns_text_eos(const NsTextHandle* handle);
/* The id of a token's text, or -1. */
int64_t ns_text_id(const NsTextHandle* handle, const uint8_t* text, size_t text_size);
int ns_text_piece(const NsTextHandle* handle, uint32_t id, NsTextByteSink out,
                  NsTextByteSink error);
/* `text` must be UTF-8. */
int ns_text_encode(const NsTextHandle* handle, const uint8_t* text, size_t text_size,
                   int add_special, NsTextIdSink out, NsTextByteSink error);
/* The result is always UTF-8. */
int ns_text_decode(const NsTextHandle* handle, const uint32_t* ids, size_t ids_size,
                   int skip_special, NsTextByteSink out, NsTextByteSink error);

#ifdef __cplusplus
}
#endif

#endif /* NORMSERVE_TEXT_H_ */
