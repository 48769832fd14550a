// SPDX-License-Identifier: Apache-2.0
//! tokenizer.json and GPT-2's vocab.json + merges.txt through the `tokenizers` crate, which is the
//! reference for both. BOS rules of tokenizer_config.json are not applied here.

use crate::backend::{Backend, BYTE_FALLBACK, MAX_VOCAB_SIZE, SPECIAL, USED};
use serde::de::IgnoredAny;
use serde_json::{json, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Tokenizer};

struct HuggingFace {
    tokenizer: Tokenizer,
    flags: Vec<u32>, // [vocab_size]
}

pub fn from_json(bytes: &[u8], specials: &[String]) -> Result<Box<dyn Backend>, String> {
    // The crate panics on some files that are not even JSON; this gives a better sentence.
    serde_json::from_slice::<IgnoredAny>(bytes).map_err(|e| format!("not JSON: {e}"))?;
    let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
    Ok(Box::new(HuggingFace::new(tokenizer, specials)?))
}

pub fn from_gpt2(
    vocab: &[u8],
    merges: &str,
    specials: &[String],
) -> Result<Box<dyn Backend>, String> {
    let vocab: Value = serde_json::from_slice(vocab).map_err(|e| format!("vocab.json: {e}"))?;
    let mut pairs = Vec::new();
    for (index, line) in merges.lines().enumerate() {
        if line.is_empty() || (index == 0 && line.starts_with("#version")) {
            continue;
        }
        match line.split_once(' ') {
            Some((left, right)) => pairs.push(json!([left, right])),
            None => {
                return Err(format!(
                    "merges.txt: line {} is not a pair of tokens",
                    index + 1
                ));
            }
        }
    }
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": true});
    let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": pairs}});
    from_json(file.to_string().as_bytes(), specials)
}

impl HuggingFace {
    fn new(mut tokenizer: Tokenizer, specials: &[String]) -> Result<Self, String> {
        // Both are ways to encode training batches; the reference switches them off for a plain
        // call.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model() {
            if bpe.dropout.is_some_and(|dropout| dropout > 0.0) {
                return Err("model.dropout must be null or 0: encoding would be random".into());
            }
        }
        let added = tokenizer.get_added_vocabulary().get_vocab();
        let missing: Vec<AddedToken> = specials
            .iter()
            .filter(|text| !added.contains_key(*text) && tokenizer.token_to_id(text).is_some())
            .map(|text| AddedToken::from(text.clone(), true))
            .collect();
        tokenizer
            .add_special_tokens(missing)
            .map_err(|e| e.to_string())?;
        let flags = Self::compute_flags(&tokenizer)?;
        Ok(Self { tokenizer, flags })
    }

    fn compute_flags(tokenizer: &Tokenizer) -> Result<Vec<u32>, String> {
        let vocab = tokenizer.get_vocab(true);
        let largest = vocab
            .values()
            .copied()
            .max()
            .ok_or("the vocabulary is empty")?;
        if largest >= MAX_VOCAB_SIZE {
            return Err(format!("token id {largest} is not below {MAX_VOCAB_SIZE}"));
        }
        // Quotes inside of strings are escaped in JSON, so this finds the decoder's type only.
        let decoder = serde_json::to_string(&tokenizer.get_decoder()).unwrap_or_default();
        let byte_fallback = decoder.contains("\"type\":\"ByteFallback\"");
        let mut flags = vec![0; largest as usize + 1];
        for (id, flag) in flags.iter_mut().enumerate() {
            let Some(token) = tokenizer.id_to_token(id as u32) else {
                continue;
            };
            *flag |= USED;
            if tokenizer.get_added_vocabulary().is_special_token(&token) {
                *flag |= SPECIAL;
            }
            if byte_fallback && is_byte_token(&token) {
                *flag |= BYTE_FALLBACK;
            }
        }
        Ok(flags)
    }
}

/// What the reference's ByteFallback decoder takes for a byte.
fn is_byte_token(token: &str) -> bool {
    token.len() == 6
        && token.starts_with("<0x")
        && token.ends_with('>')
        && token
            .get(3..5)
            .is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}

impl Backend for HuggingFace {
    fn vocab_size(&self) -> u32 {
        self.flags.len() as u32
    }

    fn flags(&self, id: u32) -> u32 {
        self.flags.get(id as usize).copied().unwrap_or(0)
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    fn piece(&self, id: u32) -> String {
        self.tokenizer.id_to_token(id).unwrap_or_default()
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special)
            .map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        self.tokenizer
            .decode(ids, skip_special)
            .map_err(|e| e.to_string())
    }
}
