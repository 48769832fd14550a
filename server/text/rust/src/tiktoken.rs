// SPDX-License-Identifier: Apache-2.0
//! tiktoken vocabularies: Llama 3's tokenizer.model (a file of ranks) and GPT-2's, compiled in.

use crate::backend::{Backend, MAX_VOCAB_SIZE, SPECIAL, USED};
use base64::{engine::general_purpose::STANDARD, Engine};
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use tiktoken_rs::CoreBPE;

/// How Llama 3 splits text into words before byte pairs are merged.
const LLAMA3_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);
/// MATCHES: Llama 3's own code cuts a text every 400,000 characters, and inside of that before the
/// 25,001st character in a row that is (or is not) whitespace; a token never spans a cut.
const LLAMA3_CUT_CHARS: usize = 400_000;
const LLAMA3_MAX_RUN_CHARS: usize = 25_000;

struct Tiktoken {
    bpe: CoreBPE,
    pieces: Vec<Vec<u8>>, // [vocab_size]; empty: unused
    specials: FxHashMap<String, u32>,
    first_special: u32, // specials have the ids from here on
    ids: FxHashMap<Vec<u8>, u32>,
    cut_long_text: bool,
}

pub fn gpt2() -> Result<Box<dyn Backend>, String> {
    const END_OF_TEXT: u32 = 50256;
    let bpe = tiktoken_rs::r50k_base().map_err(|e| e.to_string())?;
    let mut pieces = Vec::with_capacity(END_OF_TEXT as usize + 1);
    for id in 0..=END_OF_TEXT {
        pieces.push(bpe.decode_bytes(&[id]).map_err(|e| e.to_string())?);
    }
    let specials = [("<|endoftext|>".to_string(), END_OF_TEXT)]
        .into_iter()
        .collect();
    Ok(Box::new(Tiktoken::new(
        bpe,
        pieces,
        specials,
        END_OF_TEXT,
        false,
    )))
}

pub fn llama3(file: &str, special_texts: &[String]) -> Result<Box<dyn Backend>, String> {
    let mut pieces = parse_ranks(file)?;
    let encoder: FxHashMap<Vec<u8>, u32> = pieces
        .iter()
        .enumerate()
        .map(|(id, piece)| (piece.clone(), id as u32))
        .collect();
    if encoder.len() != pieces.len() {
        return Err("two ranks have the same bytes".into());
    }
    for byte in 0..=255u8 {
        if !encoder.contains_key(&[byte][..]) {
            return Err(format!("the single byte 0x{byte:02X} has no rank"));
        }
    }
    let first_special = pieces.len() as u32;
    let mut specials = FxHashMap::default();
    for text in special_texts {
        if text.is_empty() || specials.insert(text.clone(), pieces.len() as u32).is_some() {
            return Err(format!("special token {text:?} is empty or there twice"));
        }
        pieces.push(text.clone().into_bytes());
    }
    let bpe = CoreBPE::new(encoder, specials.clone(), LLAMA3_PATTERN).map_err(|e| e.to_string())?;
    Ok(Box::new(Tiktoken::new(
        bpe,
        pieces,
        specials,
        first_special,
        true,
    )))
}

/// The bytes of every rank; ranks must be 0, 1, 2, ... without a gap, in any order.
fn parse_ranks(file: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let lines: Vec<&str> = file.lines().filter(|line| !line.is_empty()).collect();
    if lines.len() >= MAX_VOCAB_SIZE as usize {
        return Err(format!(
            "{} ranks are not below {MAX_VOCAB_SIZE}",
            lines.len()
        ));
    }
    pieces.resize(lines.len(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let bad = || format!("line {} is not \"base64 rank\"", index + 1);
        let (token, rank) = line.split_once(' ').ok_or_else(bad)?;
        let token = STANDARD.decode(token).map_err(|_| bad())?;
        let rank: usize = rank.trim_end().parse().map_err(|_| bad())?;
        if token.is_empty() {
            return Err(bad());
        }
        match pieces.get_mut(rank) {
            Some(slot) if slot.is_empty() => *slot = token,
            Some(_) => return Err(format!("line {}: rank {rank} is there twice", index + 1)),
            None => {
                return Err(format!(
                    "line {}: rank {rank} is not below the number of lines, {}",
                    index + 1,
                    lines.len()
                ))
            }
        }
    }
    Ok(pieces)
}

impl Tiktoken {
    fn new(
        bpe: CoreBPE,
        pieces: Vec<Vec<u8>>,
        specials: FxHashMap<String, u32>,
        first_special: u32,
        cut_long_text: bool,
    ) -> Self {
        // Later entries win: a special token's id for its text.
        let ids = pieces
            .iter()
            .enumerate()
            .map(|(id, p)| (p.clone(), id as u32))
            .collect();
        Self {
            bpe,
            pieces,
            specials,
            first_special,
            ids,
            cut_long_text,
        }
    }

    fn encode_part(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let specials: HashSet<&str> = self.specials.keys().map(String::as_str).collect();
        let (part, _) = self.bpe.encode(text, &specials).map_err(|e| e.message)?;
        ids.extend(part);
        Ok(())
    }
}

/// The parts that Llama 3's code encodes one by one.
fn llama3_parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut chars, mut run) = (0, 0, 0);
    let mut run_is_space = false;
    for (at, c) in text.char_indices() {
        let is_space = is_python_space(c);
        if chars == LLAMA3_CUT_CHARS {
            parts.push(&text[start..at]);
            (start, chars, run) = (at, 0, 0);
        }
        if run > 0 && is_space != run_is_space {
            run = 0;
        }
        if run == LLAMA3_MAX_RUN_CHARS {
            parts.push(&text[start..at]);
            (start, run) = (at, 0);
        }
        run_is_space = is_space;
        run += 1;
        chars += 1;
    }
    parts.push(&text[start..]);
    parts
}

/// str.isspace of Python, in which Llama 3's code is written.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

impl Backend for Tiktoken {
    fn vocab_size(&self) -> u32 {
        self.pieces.len() as u32
    }

    fn flags(&self, id: u32) -> u32 {
        match self.pieces.get(id as usize) {
            None => 0,
            Some(_) if id >= self.first_special => USED | SPECIAL,
            Some(_) => USED,
        }
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text.as_bytes()).copied()
    }

    fn piece(&self, id: u32) -> String {
        self.pieces
            .get(id as usize)
            .map(|piece| String::from_utf8_lossy(piece).into_owned())
            .unwrap_or_default()
    }

    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        if self.cut_long_text {
            for part in llama3_parts(text) {
                self.encode_part(part, &mut ids)?;
            }
        } else {
            self.encode_part(text, &mut ids)?;
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let piece = self
                .pieces
                .get(id as usize)
                .ok_or_else(|| format!("unknown id {id}"))?;
            if !(skip_special && id >= self.first_special) {
                bytes.extend_from_slice(piece);
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
