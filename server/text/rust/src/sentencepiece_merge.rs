// SPDX-License-Identifier: Apache-2.0
//! Byte-pair merging of one normalized text as SentencePiece does it. Knows nothing of special
//! tokens, spaces or byte fallback.

use crate::sentencepiece::SentencePiece;
use crate::sentencepiece_proto::Kind;
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

const NONE: usize = usize::MAX;

/// A part of the text that is one piece so far; a doubly linked list in an array.
struct Symbol {
    begin: usize,
    end: usize, // == begin: merged into its left neighbour
    prev: usize,
    next: usize,
    frozen: bool, // user-defined: never merged
}

struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    size: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self
            .score
            .partial_cmp(&other.score)
            .unwrap_or(Ordering::Equal);
        by_score.then_with(|| other.left.cmp(&self.left)) // the highest score, then the leftmost
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate {}

/// Merges the characters of one text into pieces, the best-scored pair first.
pub struct Merger<'a> {
    owner: &'a SentencePiece,
    text: &'a str,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Candidate>,
    unused: FxHashMap<&'a str, usize>, // an unused piece that was a candidate: where to cut it
}

impl<'a> Merger<'a> {
    pub fn new(owner: &'a SentencePiece, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut begin = 0;
        while let Some(first) = text[begin..].chars().next() {
            let rest = &text[begin..];
            let user = owner
                .user_defined
                .iter()
                .filter(|piece| rest.starts_with(piece.as_str()));
            let user = user.map(String::len).max();
            let end = begin + user.unwrap_or(first.len_utf8());
            let index = symbols.len();
            let prev = if index == 0 { NONE } else { index - 1 };
            symbols.push(Symbol {
                begin,
                end,
                prev,
                next: index + 1,
                frozen: user.is_some(),
            });
            begin = end;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        Self {
            owner,
            text,
            symbols,
            agenda: BinaryHeap::new(),
            unused: FxHashMap::default(),
        }
    }

    fn consider(&mut self, left: usize, right: usize) {
        if left == NONE || right == NONE {
            return;
        }
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        if a.frozen || b.frozen {
            return;
        }
        let piece = &self.text[a.begin..b.end];
        let Some(&id) = self.owner.mergeable.get(piece) else {
            return;
        };
        let score = self.owner.model.pieces[id as usize].score;
        if self.owner.kind(id) == Kind::Unused {
            self.unused.insert(piece, a.end - a.begin);
        }
        self.agenda.push(Candidate {
            score,
            left,
            right,
            size: piece.len(),
        });
    }

    pub fn run(mut self) -> Vec<(&'a str, u32)> {
        for right in 1..self.symbols.len() {
            self.consider(right - 1, right);
        }
        while let Some(best) = self.agenda.pop() {
            let (left, right) = (&self.symbols[best.left], &self.symbols[best.right]);
            let gone = left.begin == left.end || right.begin == right.end;
            if gone || left.end - left.begin + right.end - right.begin != best.size {
                continue; // one of the two has been merged meanwhile
            }
            let (end, next) = (right.end, right.next);
            self.symbols[best.left].end = end;
            self.symbols[best.left].next = next;
            self.symbols[best.right].end = self.symbols[best.right].begin;
            if next != NONE {
                self.symbols[next].prev = best.left;
            }
            self.consider(self.symbols[best.left].prev, best.left);
            self.consider(best.left, next);
        }
        let mut pieces = Vec::new();
        let mut index = if self.symbols.is_empty() { NONE } else { 0 };
        while index != NONE {
            let symbol = &self.symbols[index];
            self.split_unused(&self.text[symbol.begin..symbol.end], &mut pieces);
            index = symbol.next;
        }
        pieces
    }

    /// An unused piece is a step of merging only: it is taken apart again.
    fn split_unused(&self, piece: &'a str, out: &mut Vec<(&'a str, u32)>) {
        let mut stack = vec![piece];
        while let Some(piece) = stack.pop() {
            let id = self.owner.piece_id(piece);
            match self.unused.get(piece) {
                Some(&cut) if self.owner.kind(id) == Kind::Unused => {
                    stack.push(&piece[cut..]);
                    stack.push(&piece[..cut]);
                }
                _ => out.push((piece, id)),
            }
        }
    }
}
