// SPDX-License-Identifier: Apache-2.0
//! Reads of a SentencePiece model file (a serialized protobuf) what encoding and decoding need.
//! Unknown fields are skipped; nothing is trusted.

use crate::backend::MAX_VOCAB_SIZE;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

pub struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: Kind,
}

/// The defaults are those of the format's definition.
pub struct Model {
    pub pieces: Vec<Piece>,
    pub model_type: u64, // 1: unigram, 2: BPE, 3: word, 4: char
    pub byte_fallback: bool,
    pub whitespace_as_suffix: bool,
    pub unk_surface: String,
    pub bos_piece: String,
    pub eos_piece: String,
    pub has_charsmap: bool, // normalizes or denormalizes by a table
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

const BAD: &str = "not a well-formed model";

enum Value<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
}

struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8], String> {
        if size > self.rest.len() {
            return Err(format!("{BAD}: it ends in the middle of a field"));
        }
        let (taken, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            if shift < 64 {
                value |= u64::from(byte & 0x7F) << shift;
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(format!("{BAD}: a number has more than ten bytes"))
    }

    /// The next field's number and value; None at the end.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Number(0) // no field that we read is a 64-bit one
            }
            2 => {
                let size = usize::try_from(self.varint()?).map_err(|_| BAD.to_string())?;
                Value::Bytes(self.take(size)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return Err(format!("{BAD}: field type {other} is not known")),
        };
        Ok(Some((key >> 3, value)))
    }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| format!("{BAD}: a text is not UTF-8"))
}

fn parse_piece(bytes: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: Kind::Normal,
    };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => piece.text = text(bytes)?,
            (2, Value::Float(score)) => piece.score = score,
            (3, Value::Number(kind)) => {
                piece.kind = match kind {
                    1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    other => return Err(format!("{BAD}: piece type {other} is not known")),
                }
            }
            _ => {}
        }
    }
    Ok(piece)
}

fn parse_trainer(bytes: &[u8], model: &mut Model) -> Result<(), String> {
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (3, Value::Number(value)) => model.model_type = value,
            (24, Value::Number(value)) => model.whitespace_as_suffix = value != 0,
            (35, Value::Number(value)) => model.byte_fallback = value != 0,
            (44, Value::Bytes(bytes)) => model.unk_surface = text(bytes)?,
            (46, Value::Bytes(bytes)) => model.bos_piece = text(bytes)?,
            (47, Value::Bytes(bytes)) => model.eos_piece = text(bytes)?,
            _ => {}
        }
    }
    Ok(())
}

fn parse_normalizer(bytes: &[u8], model: &mut Model) -> Result<(), String> {
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (2, Value::Bytes(bytes)) => model.has_charsmap |= !bytes.is_empty(),
            (3, Value::Number(value)) => model.add_dummy_prefix = value != 0,
            (4, Value::Number(value)) => model.remove_extra_whitespaces = value != 0,
            (5, Value::Number(value)) => model.escape_whitespaces = value != 0,
            _ => {}
        }
    }
    Ok(())
}

fn parse_denormalizer(bytes: &[u8], model: &mut Model) -> Result<(), String> {
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        if let (2, Value::Bytes(bytes)) = field {
            model.has_charsmap |= !bytes.is_empty();
        }
    }
    Ok(())
}

pub fn parse(bytes: &[u8]) -> Result<Model, String> {
    let mut model = Model {
        pieces: Vec::new(),
        model_type: 1,
        byte_fallback: false,
        whitespace_as_suffix: false,
        unk_surface: " \u{2047} ".into(),
        bos_piece: "<s>".into(),
        eos_piece: "</s>".into(),
        has_charsmap: false,
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        escape_whitespaces: true,
    };
    let mut fields = Fields { rest: bytes };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => model.pieces.push(parse_piece(bytes)?),
            (2, Value::Bytes(bytes)) => parse_trainer(bytes, &mut model)?,
            (3, Value::Bytes(bytes)) => parse_normalizer(bytes, &mut model)?,
            (5, Value::Bytes(bytes)) => parse_denormalizer(bytes, &mut model)?,
            _ => {}
        }
        if model.pieces.len() >= MAX_VOCAB_SIZE as usize {
            return Err(format!("it has {MAX_VOCAB_SIZE} pieces or more"));
        }
    }
    if model.pieces.is_empty() {
        return Err(format!("{BAD}: it has no pieces"));
    }
    Ok(model)
}
