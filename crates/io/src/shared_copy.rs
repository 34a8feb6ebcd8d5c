//! Copies between private memory and the words of a ring.
//!
//! The other process may write to a word while it is copied. A loop over atomic words permits that,
//! but the compiler makes no vector instructions of it. On x86-64, assembly code copies 16 bytes at
//! a time: the compiler sees neither its accesses to the ring nor their values, so it can assume
//! nothing about them. Other processors copy words (decision 68).
#![expect(unsafe_code, reason = "vector instructions on memory of two processes")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::WORD;

/// Bytes of a vector register.
const BLOCK_BYTES: usize = 16;
const BLOCK_WORDS: usize = BLOCK_BYTES / WORD;

/// Copies the whole words of `bytes` to as many words.
#[inline]
pub(super) fn write_words(words: &[AtomicU64], bytes: &[u8]) {
    let blocks = blocks(words, bytes);
    if blocks > 0 {
        // SAFETY: both have this many blocks. Atomic words may be written to through a shared
        // reference.
        unsafe { copy_blocks(bytes.as_ptr(), words.as_ptr().cast_mut().cast(), blocks) };
    }
    let (words, bytes) = (&words[blocks * BLOCK_WORDS..], &bytes[blocks * BLOCK_BYTES..]);
    let chunks = bytes.chunks_exact(WORD).filter_map(<[u8]>::first_chunk);
    for (word, chunk) in words.iter().zip(chunks) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

/// Copies words to the whole words of `bytes`.
#[inline]
pub(super) fn read_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let blocks = blocks(words, bytes);
    if blocks > 0 {
        // SAFETY: both have this many blocks.
        unsafe { copy_blocks(words.as_ptr().cast(), bytes.as_mut_ptr(), blocks) };
    }
    let (words, bytes) = (&words[blocks * BLOCK_WORDS..], &mut bytes[blocks * BLOCK_BYTES..]);
    for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(WORD)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// Returns the number of blocks that vector instructions copy.
#[inline]
fn blocks(words: &[AtomicU64], bytes: &[u8]) -> usize {
    if cfg!(target_arch = "x86_64") { words.len().min(bytes.len() / WORD) / BLOCK_WORDS } else { 0 }
}

/// Copies blocks of [`BLOCK_BYTES`] between memory that does not overlap, in any alignment.
///
/// # Safety
/// `from` may be read and `to` written for this many blocks, of which there is at least one.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, blocks: usize) {
    // SAFETY: the caller vouches for the memory; SSE2 is part of x86-64.
    unsafe {
        std::arch::asm!(
            // Four blocks at a time.
            "sub {blocks}, 4",
            "jb 3f",
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {blocks}, 4",
            "jae 2b",
            // The rest, one at a time.
            "3:",
            "add {blocks}, 4",
            "jz 5f",
            "4:",
            "movdqu {a}, [{from}]",
            "movdqu [{to}], {a}",
            "add {from}, 16",
            "add {to}, 16",
            "dec {blocks}",
            "jnz 4b",
            "5:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            blocks = inout(reg) blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// See [`blocks`]: not called.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_blocks(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("vector instructions of another processor");
}
