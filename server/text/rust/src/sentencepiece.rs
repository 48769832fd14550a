// SPDX-License-Identifier: Apache-2.0
//! SentencePiece BPE models without a normalization table: Llama 2's tokenizer.model and those like
//! it. Ours and not the SentencePiece library, whose shared object brings another protobuf into a
//! gRPC server (docs/adr/0030-sentencepiece-without-its-library.md). Other kinds of models are
//! refused.
//!
//! DIFFERS: the library takes "</s>" in a text for five characters; our contract is that text which
//! spells a special token becomes it, as in `transformers`. So a text is cut at the texts of
//! control pieces, and each part is encoded as a text of its own (with its own leading space).
//! Decoding with the special tokens does the reverse; without them it is the library's.

use crate::backend::{Backend, BYTE_FALLBACK, SPECIAL, USED};
use crate::sentencepiece_merge::Merger;
use crate::sentencepiece_proto::{parse, Kind, Model};
use aho_corasick::{AhoCorasick, MatchKind};
use rustc_hash::FxHashMap;

const SPACE: &str = "\u{2581}"; // stands for a space within pieces

pub struct SentencePiece {
    pub model: Model,
    pub mergeable: FxHashMap<String, u32>, // normal, user-defined, unused
    reserved: FxHashMap<String, u32>,      // control, unknown, byte
    unk: u32,
    bytes: Vec<u32>, // [256] ids of the byte pieces; empty without byte fallback
    byte_of: FxHashMap<u32, u8>,
    controls: Vec<u32>,
    control_finder: AhoCorasick, // of their texts, in the order of `controls`
    pub user_defined: Vec<String>,
}

pub fn from_model(file: &[u8]) -> Result<Box<dyn Backend>, String> {
    let model = parse(file)?;
    if model.model_type != 2 {
        return Err(
            "only BPE models are supported, not unigram, word or char ones; \
                    put the model's tokenizer.json beside it"
                .into(),
        );
    }
    if model.has_charsmap {
        return Err("models with a normalization table are not supported; \
                    put the model's tokenizer.json beside it"
            .into());
    }
    Ok(Box::new(SentencePiece::new(model)?))
}

/// Finds the text that comes first, and of several there the longest.
fn finder(texts: &[&str]) -> Result<AhoCorasick, String> {
    let builder = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(texts);
    builder.map_err(|e| e.to_string())
}

fn byte_of(piece: &str) -> Option<u8> {
    (0..=255u8).find(|byte| piece == format!("<0x{byte:02X}>"))
}

impl SentencePiece {
    fn new(model: Model) -> Result<Self, String> {
        let mut new = Self {
            mergeable: FxHashMap::default(),
            reserved: FxHashMap::default(),
            unk: u32::MAX,
            bytes: Vec::new(),
            byte_of: FxHashMap::default(),
            controls: Vec::new(),
            control_finder: finder(&[])?,
            user_defined: Vec::new(),
            model,
        };
        for id in 0..new.model.pieces.len() as u32 {
            new.add_piece(id)?;
        }
        let controls = new
            .controls
            .iter()
            .map(|&id| new.model.pieces[id as usize].text.as_str());
        new.control_finder = finder(&controls.collect::<Vec<_>>())?;
        if new.unk == u32::MAX {
            return Err("no piece has the type unknown".into());
        }
        if new.model.byte_fallback {
            for byte in 0..=255u8 {
                let piece = format!("<0x{byte:02X}>");
                match new.reserved.get(&piece) {
                    Some(id) if new.byte_of.contains_key(id) => new.bytes.push(*id),
                    _ => return Err(format!("it has byte_fallback but no byte piece {piece}")),
                }
            }
        }
        Ok(new)
    }

    fn add_piece(&mut self, id: u32) -> Result<(), String> {
        let piece = &self.model.pieces[id as usize];
        if piece.text.is_empty() {
            return Err(format!("piece {id} is empty"));
        }
        let map = match piece.kind {
            Kind::Normal | Kind::UserDefined | Kind::Unused => &mut self.mergeable,
            Kind::Unknown | Kind::Control | Kind::Byte => &mut self.reserved,
        };
        if map.insert(piece.text.clone(), id).is_some() {
            return Err(format!("piece {:?} is there twice", piece.text));
        }
        match piece.kind {
            Kind::Unknown if self.unk != u32::MAX => {
                return Err("two pieces have the type unknown".into());
            }
            Kind::Unknown => self.unk = id,
            Kind::Control => self.controls.push(id),
            Kind::UserDefined => self.user_defined.push(piece.text.clone()),
            Kind::Byte => {
                let byte = byte_of(&piece.text).filter(|_| self.model.byte_fallback);
                let byte = byte.ok_or_else(|| {
                    format!(
                        "byte piece {:?} is not <0xNN>, or byte_fallback is off",
                        piece.text
                    )
                })?;
                self.byte_of.insert(id, byte);
            }
            _ => {}
        }
        Ok(())
    }

    pub fn kind(&self, id: u32) -> Kind {
        self.model.pieces[id as usize].kind
    }

    pub fn piece_id(&self, text: &str) -> u32 {
        let found = self.reserved.get(text).or_else(|| self.mergeable.get(text));
        found.copied().unwrap_or(self.unk)
    }

    fn normalize(&self, text: &str) -> String {
        let model = &self.model;
        let space = if model.escape_whitespaces { SPACE } else { " " };
        let tidy = model.remove_extra_whitespaces;
        let text = if tidy {
            text.trim_start_matches(' ')
        } else {
            text
        };
        let mut out = String::with_capacity(text.len() * 2);
        if text.is_empty() {
            return out;
        }
        if model.add_dummy_prefix && !model.whitespace_as_suffix {
            out.push_str(space);
        }
        let mut after_space = false;
        for c in text.chars() {
            if c != ' ' {
                out.push(c);
            } else if !(tidy && after_space) {
                out.push_str(space);
            }
            after_space = c == ' ';
        }
        if tidy {
            out.truncate(out.trim_end_matches(space).len());
        }
        if model.add_dummy_prefix && model.whitespace_as_suffix {
            out.push_str(space);
        }
        out
    }

    fn encode_part(&self, text: &str, ids: &mut Vec<u32>) {
        let normalized = self.normalize(text);
        let mut after_unknown = false;
        for (piece, id) in Merger::new(self, &normalized).run() {
            let unknown = id == self.unk;
            if unknown && !self.bytes.is_empty() {
                ids.extend(piece.bytes().map(|byte| self.bytes[usize::from(byte)]));
            } else if !(unknown && after_unknown) {
                ids.push(id); // a run of unknown characters is one unknown piece
            }
            after_unknown = unknown;
        }
    }

    fn decode_part(&self, ids: &[u32], out: &mut String) {
        let model = &self.model;
        let strips = model.add_dummy_prefix || model.remove_extra_whitespaces;
        let mut text = String::new();
        let mut bytes = Vec::new();
        let (mut at_start, mut start_seen) = (true, false);
        for &id in ids {
            if let Some(&byte) = self.byte_of.get(&id) {
                bytes.push(byte);
                continue;
            }
            decode_bytes(&mut bytes, &mut text);
            if start_seen || !text.is_empty() {
                at_start = false;
            }
            start_seen = false;
            match self.kind(id) {
                Kind::Control => {}
                Kind::Unknown => text.push_str(&model.unk_surface),
                _ => {
                    let mut piece = model.pieces[id as usize].text.as_str();
                    if at_start && strips {
                        if let Some(rest) = piece.strip_prefix(SPACE) {
                            piece = rest;
                            start_seen = !model.remove_extra_whitespaces;
                        }
                    }
                    text.push_str(&piece.replace(SPACE, " "));
                }
            }
        }
        decode_bytes(&mut bytes, &mut text);
        out.push_str(&text);
    }
}

/// Each byte that is not part of a character becomes one U+FFFD.
fn decode_bytes(bytes: &mut Vec<u8>, text: &mut String) {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(_) => rest.len(),
            Err(e) => e.valid_up_to(),
        };
        text.push_str(&String::from_utf8_lossy(&rest[..valid]));
        rest = &rest[valid..];
        if !rest.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[1..];
        }
    }
    bytes.clear();
}

impl Backend for SentencePiece {
    fn vocab_size(&self) -> u32 {
        self.model.pieces.len() as u32
    }

    fn flags(&self, id: u32) -> u32 {
        match self.model.pieces.get(id as usize).map(|piece| piece.kind) {
            None => 0,
            Some(Kind::Control) => USED | SPECIAL,
            Some(Kind::Byte) => USED | BYTE_FALLBACK,
            Some(_) => USED,
        }
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.reserved
            .get(text)
            .or_else(|| self.mergeable.get(text))
            .copied()
    }

    fn bos(&self) -> Option<u32> {
        let id = self.piece_id(&self.model.bos_piece);
        (self.kind(id) == Kind::Control).then_some(id)
    }

    fn eos(&self) -> Option<u32> {
        let id = self.piece_id(&self.model.eos_piece);
        (self.kind(id) == Kind::Control).then_some(id)
    }

    fn piece(&self, id: u32) -> String {
        self.model
            .pieces
            .get(id as usize)
            .map(|piece| piece.text.clone())
            .unwrap_or_default()
    }

    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        let mut begin = 0;
        for control in self.control_finder.find_iter(text) {
            self.encode_part(&text[begin..control.start()], &mut ids);
            ids.push(self.controls[control.pattern().as_usize()]);
            begin = control.end();
        }
        self.encode_part(&text[begin..], &mut ids);
        Ok(ids)
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        if let Some(id) = ids.iter().find(|&&id| id >= self.vocab_size()) {
            return Err(format!("unknown id {id}"));
        }
        let mut text = String::new();
        if skip_special {
            self.decode_part(ids, &mut text);
            return Ok(text);
        }
        for part in ids.split_inclusive(|&id| self.kind(id) == Kind::Control) {
            self.decode_part(part, &mut text);
            if let Some(&last) = part.last().filter(|&&id| self.kind(id) == Kind::Control) {
                text.push_str(&self.model.pieces[last as usize].text);
            }
        }
        Ok(text)
    }
}
