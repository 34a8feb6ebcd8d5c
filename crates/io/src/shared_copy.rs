//! Copies between private memory and memory that another process shares.
//!
//! The other process may write to a word while it is copied. A loop over atomic words permits that,
//! but the compiler makes no vector instructions of it. On x86-64, assembly code copies 16 bytes at
//! a time: the compiler sees neither its accesses to the shared memory nor their values, so it can
//! assume nothing about them (decision 68). On other processors nothing is copied here.
//!
//! Called by [`crate::shared_ring`] and [`crate::shared_region`], which copy the rest by words.
#![expect(unsafe_code, reason = "vector instructions on memory of two processes")]

use std::sync::atomic::AtomicU64;

/// Bytes of a vector register.
const BLOCK_BYTES: usize = 16;
const BLOCK_WORDS: usize = BLOCK_BYTES / size_of::<AtomicU64>();

/// Copies the first bytes to the first words, by vectors. Returns the number of words written.
#[inline]
pub(crate) fn write_vectors(words: &[AtomicU64], bytes: &[u8]) -> usize {
    let blocks = blocks(words, bytes);
    if blocks > 0 {
        // SAFETY: both have this many blocks. Atomic words may be written to through a shared
        // reference.
        unsafe { copy_blocks(bytes.as_ptr(), words.as_ptr().cast_mut().cast(), blocks) };
    }
    blocks * BLOCK_WORDS
}

/// Copies the first words to the first bytes, by vectors. Returns the number of words read.
#[inline]
pub(crate) fn read_vectors(words: &[AtomicU64], bytes: &mut [u8]) -> usize {
    let blocks = blocks(words, bytes);
    if blocks > 0 {
        // SAFETY: both have this many blocks.
        unsafe { copy_blocks(words.as_ptr().cast(), bytes.as_mut_ptr(), blocks) };
    }
    blocks * BLOCK_WORDS
}

/// Returns the number of blocks that vector instructions copy.
#[inline]
fn blocks(words: &[AtomicU64], bytes: &[u8]) -> usize {
    if cfg!(target_arch = "x86_64") {
        (words.len() / BLOCK_WORDS).min(bytes.len() / BLOCK_BYTES)
    } else {
        0
    }
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
