// SPDX-License-Identifier: Apache-2.0
//! What every tokenizer here can do. Immutable after loading; shared between threads.

/// The bits of ns_text_flags.
pub const USED: u32 = 1;
pub const SPECIAL: u32 = 2;
pub const BYTE_FALLBACK: u32 = 4;

/// Ids at or past this are refused at load: tables here and rows of a model are indexed by id, so a
/// crafted id must not decide how much memory is taken.
pub const MAX_VOCAB_SIZE: u32 = 1 << 24;

pub trait Backend: Send + Sync {
    /// One more than the largest id.
    fn vocab_size(&self) -> u32;
    fn flags(&self, id: u32) -> u32;
    fn id(&self, text: &str) -> Option<u32>;
    /// The ids that the model file itself calls BOS and EOS.
    fn bos(&self) -> Option<u32> {
        None
    }
    fn eos(&self) -> Option<u32> {
        None
    }
    /// Empty for an unused id.
    fn piece(&self, id: u32) -> String;
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String>;
    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String>;
}
