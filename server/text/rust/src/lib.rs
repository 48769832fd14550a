// SPDX-License-Identifier: Apache-2.0
//! The C ABI over the tokenizer backends; include/normserve_text.h is its contract. Nothing here
//! knows how a tokenizer works, and nothing outside this file is unsafe.

mod backend;
mod huggingface;
mod sentencepiece;
mod sentencepiece_merge;
mod sentencepiece_proto;
mod tiktoken;

use backend::Backend;
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

pub struct Handle(Box<dyn Backend>);

#[repr(C)]
pub struct ByteSink {
    put: extern "C" fn(*mut c_void, *const u8, usize),
    context: *mut c_void,
}

#[repr(C)]
pub struct IdSink {
    put: extern "C" fn(*mut c_void, *const u32, usize),
    context: *mut c_void,
}

impl ByteSink {
    fn give(&self, bytes: &[u8]) {
        (self.put)(self.context, bytes.as_ptr(), bytes.len());
    }
}

impl IdSink {
    fn give(&self, ids: &[u32]) {
        (self.put)(self.context, ids.as_ptr(), ids.len());
    }
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let detail = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no detail");
    format!("the tokenizer library failed internally: {detail}")
}

/// Runs `body`; its error or panic becomes text in `error` and the return value 1.
fn guarded(error: ByteSink, body: impl FnOnce() -> Result<(), String>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|p| Err(panic_text(p)));
    match result {
        Ok(()) => 0,
        Err(text) => {
            error.give(text.replace('\n', " ").as_bytes());
            1
        }
    }
}

fn load(
    out: *mut *mut Handle,
    error: ByteSink,
    body: impl FnOnce() -> Result<Box<dyn Backend>, String>,
) -> c_int {
    guarded(error, || {
        let handle = Box::into_raw(Box::new(Handle(body()?)));
        // SAFETY: the contract of the header: `out` is valid for a write.
        unsafe { *out = handle };
        Ok(())
    })
}

/// # Safety
/// `data` points to `size` readable elements, or size is 0.
unsafe fn borrowed<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("invalid UTF-8 after byte {}", e.valid_up_to()))
}

fn token_list(json: &[u8]) -> Result<Vec<String>, String> {
    serde_json::from_slice(json).map_err(|e| format!("special tokens: {e}"))
}

/// # Safety
/// See the header: pointers with their sizes are readable, `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn ns_text_load_tokenizer_json(
    json: *const u8,
    json_size: usize,
    specials: *const u8,
    specials_size: usize,
    out: *mut *mut Handle,
    error: ByteSink,
) -> c_int {
    let (json, specials) = (borrowed(json, json_size), borrowed(specials, specials_size));
    load(out, error, || {
        huggingface::from_json(json, &token_list(specials)?)
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_load_gpt2(
    vocab: *const u8,
    vocab_size: usize,
    merges: *const u8,
    merges_size: usize,
    specials: *const u8,
    specials_size: usize,
    out: *mut *mut Handle,
    error: ByteSink,
) -> c_int {
    let (vocab, merges) = (borrowed(vocab, vocab_size), borrowed(merges, merges_size));
    let specials = borrowed(specials, specials_size);
    load(out, error, || {
        huggingface::from_gpt2(vocab, utf8(merges)?, &token_list(specials)?)
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_load_gpt2_builtin(
    out: *mut *mut Handle,
    error: ByteSink,
) -> c_int {
    load(out, error, tiktoken::gpt2)
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_load_tiktoken(
    ranks: *const u8,
    ranks_size: usize,
    specials: *const u8,
    specials_size: usize,
    out: *mut *mut Handle,
    error: ByteSink,
) -> c_int {
    let (ranks, specials) = (
        borrowed(ranks, ranks_size),
        borrowed(specials, specials_size),
    );
    load(out, error, || {
        tiktoken::llama3(utf8(ranks)?, &token_list(specials)?)
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_load_sentencepiece(
    model: *const u8,
    model_size: usize,
    out: *mut *mut Handle,
    error: ByteSink,
) -> c_int {
    let model = borrowed(model, model_size);
    load(out, error, || sentencepiece::from_model(model))
}

/// # Safety
/// `handle` came from a load function and is used by nobody any more; or it is null.
#[no_mangle]
pub unsafe extern "C" fn ns_text_free(handle: *mut Handle) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

/// # Safety
/// `handle` is live, here and below.
#[no_mangle]
pub unsafe extern "C" fn ns_text_vocab_size(handle: *const Handle) -> u32 {
    (*handle).0.vocab_size()
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_flags(handle: *const Handle, id: u32) -> u32 {
    (*handle).0.flags(id)
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_bos(handle: *const Handle) -> i64 {
    (*handle).0.bos().map_or(-1, i64::from)
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_eos(handle: *const Handle) -> i64 {
    (*handle).0.eos().map_or(-1, i64::from)
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_id(handle: *const Handle, text: *const u8, size: usize) -> i64 {
    let backend = &(*handle).0;
    let text = borrowed(text, size);
    let found = catch_unwind(AssertUnwindSafe(|| {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| backend.id(text))
    }));
    found.ok().flatten().map_or(-1, i64::from)
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_piece(
    handle: *const Handle,
    id: u32,
    out: ByteSink,
    error: ByteSink,
) -> c_int {
    let backend = &(*handle).0;
    guarded(error, || {
        out.give(backend.piece(id).as_bytes());
        Ok(())
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_encode(
    handle: *const Handle,
    text: *const u8,
    text_size: usize,
    add_special: c_int,
    out: IdSink,
    error: ByteSink,
) -> c_int {
    let backend = &(*handle).0;
    let text = borrowed(text, text_size);
    guarded(error, || {
        out.give(&backend.encode(utf8(text)?, add_special != 0)?);
        Ok(())
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn ns_text_decode(
    handle: *const Handle,
    ids: *const u32,
    ids_size: usize,
    skip_special: c_int,
    out: ByteSink,
    error: ByteSink,
) -> c_int {
    let backend = &(*handle).0;
    let ids = borrowed(ids, ids_size);
    guarded(error, || {
        out.give(backend.decode(ids, skip_special != 0)?.as_bytes());
        Ok(())
    })
}
