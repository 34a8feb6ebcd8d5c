//! Encryption and decryption of a whole text in one call, by aws-lc with the instructions that this
//! CPU has.
//!
//! Called by the suites for `seal`, `seal_copy` and `open`. aws-lc-rs has no encryption from one
//! buffer to another, so aws-lc is called directly; `unsafe` is as in [`crate::aws_lc`]. Knows
//! nothing of ranges.

use std::ptr::NonNull;

use abi::crypto::{BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use aws_lc_sys as ffi;

/// A key of aws-lc, which wipes it when dropped.
pub(crate) struct WholeTextKey(NonNull<ffi::EVP_AEAD_CTX>);

// SAFETY: the context belongs to this value alone, and aws-lc's contexts are not bound to a thread.
unsafe impl Send for WholeTextKey {}
// SAFETY: encryption and decryption do not change a context (`openssl/aead.h`, "thread safety").
unsafe impl Sync for WholeTextKey {}

impl WholeTextKey {
    /// Returns `None` if `key` has the wrong length, or memory is exhausted.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        if key.len() != suite.key_bytes() {
            return None;
        }
        // SAFETY: the first three functions return pointers to constants; `key` has the length that
        // is passed, and is copied.
        let context = unsafe {
            let algorithm = match suite {
                Suite::Aes128Gcm => ffi::EVP_aead_aes_128_gcm(),
                Suite::Aes256Gcm => ffi::EVP_aead_aes_256_gcm(),
                Suite::ChaCha20Poly1305 => ffi::EVP_aead_chacha20_poly1305(),
            };
            ffi::EVP_AEAD_CTX_new(algorithm, key.as_ptr(), key.len(), TAG_BYTES)
        };
        NonNull::new(context).map(Self)
    }

    /// Encrypts in place and returns the tag.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let (mut tag, mut tag_len) = ([0; TAG_BYTES], 0);
        let bytes = text.as_mut_ptr();
        // SAFETY: input and output are the same buffer, which is permitted, of the length that is
        // passed, and there is no extra input; at most `TAG_BYTES` are written to `tag`. Nonce and
        // associated data have the lengths that are passed.
        let sealed = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                bytes,
                tag.as_mut_ptr(),
                &mut tag_len,
                TAG_BYTES,
                nonce.as_ptr(),
                NONCE_BYTES,
                bytes,
                text.len(),
                std::ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        if sealed != 1 {
            // Only for texts of 64 GiB: plaintext must not be taken for ciphertext.
            text.fill(0);
        }
        tag
    }

    /// Encrypts `text` and `last` to `out`, followed by the tag.
    ///
    /// # Panics
    /// If `out` does not have the length of all three.
    pub(crate) fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    ) {
        assert_eq!(out.len(), text.len() + last.len() + TAG_BYTES, "text, last bytes and tag");
        let (encrypted, rest) = out.split_at_mut(text.len());
        let mut rest_len = 0;
        // SAFETY: `encrypted` has the length of `text`, and `rest` that of `last` and a tag; they
        // are borrowed separately, so they do not overlap. Nonce and associated data have the
        // lengths that are passed.
        let sealed = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.0.as_ptr(),
                encrypted.as_mut_ptr(),
                rest.as_mut_ptr(),
                &mut rest_len,
                rest.len(),
                nonce.as_ptr(),
                NONCE_BYTES,
                text.as_ptr(),
                text.len(),
                last.as_ptr(),
                last.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        if sealed != 1 {
            // Only for texts of 64 GiB.
            out.fill(0);
        }
    }

    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        let bytes = sealed.as_mut_ptr();
        let mut len = 0;
        // SAFETY: input and output are the same buffer, which is permitted, of the length that is
        // passed. Nonce and associated data have the lengths that are passed.
        let opened = unsafe {
            ffi::EVP_AEAD_CTX_open(
                self.0.as_ptr(),
                bytes,
                &mut len,
                sealed.len(),
                nonce.as_ptr(),
                NONCE_BYTES,
                bytes,
                sealed.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        if opened == 1 {
            return Ok(len);
        }
        // SAFETY: the function has no precondition; it empties this thread's queue of errors, in
        // which the failure left an entry.
        unsafe { ffi::ERR_clear_error() };
        Err(BadTag)
    }
}

impl Drop for WholeTextKey {
    fn drop(&mut self) {
        // SAFETY: the context came from `EVP_AEAD_CTX_new` and is not used again. aws-lc wipes it.
        unsafe { ffi::EVP_AEAD_CTX_free(self.0.as_ptr()) };
    }
}
