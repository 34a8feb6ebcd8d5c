//! Functions of aws-lc that aws-lc-rs, its safe interface, does not have: AES-GCM with an IV of any
//! length, which returns the tag in both directions and keeps a text whose tag is wrong, and
//! ChaCha20 from any block on.
//!
//! Called by [`crate::gcm`] and [`crate::chacha`]. The `unsafe` code of this crate is here and in
//! [`crate::whole_text`]: each call passes pointers to slices and arrays of the lengths that
//! aws-lc's headers document (`openssl/cipher.h`, `openssl/chacha.h`), and aws-lc keeps none of
//! them. Knows nothing of ranges.

use std::ffi::c_int;
use std::ptr::{NonNull, null, null_mut};

use abi::crypto::{NONCE_BYTES, Suite, TAG_BYTES};
use aws_lc_sys as ffi;

use crate::horner::BLOCK;

/// Direction of AES-GCM, as `EVP_CipherInit_ex` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum GcmDirection {
    /// Decrypts: the input is authenticated.
    Open = 0,
    /// Encrypts: the output is authenticated.
    Seal = 1,
}

/// A key of AES-GCM, by the kernels of aws-lc that encrypt and authenticate in one pass.
pub(crate) struct GcmContext(NonNull<ffi::EVP_CIPHER_CTX>);

// SAFETY: the context belongs to this value alone, and aws-lc's contexts are not bound to a thread.
unsafe impl Send for GcmContext {}

impl GcmContext {
    /// Returns `None` if the suite is not AES-GCM, `key` does not have its length, or memory is
    /// exhausted.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        let cipher = match suite {
            // SAFETY: the functions return a pointer to a constant.
            Suite::Aes128Gcm => unsafe { ffi::EVP_aes_128_gcm() },
            // SAFETY: as above.
            Suite::Aes256Gcm => unsafe { ffi::EVP_aes_256_gcm() },
            Suite::ChaCha20Poly1305 => return None,
        };
        if key.len() != suite.key_bytes() {
            return None;
        }
        // SAFETY: the function has no precondition; it returns null if memory is exhausted.
        let context = Self(NonNull::new(unsafe { ffi::EVP_CIPHER_CTX_new() })?);
        let raw = context.0.as_ptr();
        let (no_key, no_iv) = (null(), null());
        // SAFETY: `raw` is a context that `EVP_CIPHER_CTX_new` initialized; `key` has the length of
        // the cipher's keys.
        let ready = unsafe {
            ffi::EVP_CipherInit_ex(raw, cipher, null_mut(), no_key, no_iv, 1) == 1
                && ffi::EVP_CipherInit_ex(raw, null(), null_mut(), key.as_ptr(), no_iv, 1) == 1
        };
        ready.then_some(context)
    }

    /// Begins a text whose associated data is `aad`.
    ///
    /// # Panics
    /// If the IV does not have 1 to 16 bytes, or the associated data is longer than 2 GiB.
    pub(crate) fn begin(&mut self, direction: GcmDirection, iv: &[u8], aad: &[u8]) {
        let (raw, mut written) = (self.0.as_ptr(), 0);
        assert!((1..=BLOCK).contains(&iv.len()), "the context has room for an IV of a block");
        let len = |bytes: &[u8]| c_int::try_from(bytes.len()).expect("associated data is short");
        let (iv_len, aad_len) = (len(iv), len(aad));
        // SAFETY: `raw` is a context with a key; the IV has the length that is set before it.
        // Without an output, `EVP_CipherUpdate` reads associated data of the length that is passed,
        // and writes nothing but `written`.
        let done = unsafe {
            let direction = direction as c_int;
            ffi::EVP_CIPHER_CTX_ctrl(raw, ffi::EVP_CTRL_AEAD_SET_IVLEN, iv_len, null_mut()) == 1
                && ffi::EVP_CipherInit_ex(raw, null(), null_mut(), null(), iv.as_ptr(), direction)
                    == 1
                && ffi::EVP_CipherUpdate(raw, null_mut(), &mut written, aad.as_ptr(), aad_len) == 1
        };
        assert!(done, "a context with a key accepts an IV and associated data");
    }

    /// Encrypts or decrypts the next range of the text in place.
    ///
    /// # Panics
    /// If the range is longer than 2 GiB, or the text longer than AES-GCM permits.
    pub(crate) fn update(&mut self, range: &mut [u8]) {
        let (raw, mut written) = (self.0.as_ptr(), 0);
        let len = c_int::try_from(range.len()).expect("the caller limits ranges");
        let bytes = range.as_mut_ptr();
        // SAFETY: `raw` is a context with a key and an IV. GCM writes as many bytes as it reads,
        // and input and output may be the same buffer.
        let done = unsafe { ffi::EVP_CipherUpdate(raw, bytes, &mut written, bytes, len) };
        assert_eq!(done, 1, "a context with an IV accepts text");
    }

    /// Returns the tag of associated data and ciphertext since [`Self::begin`].
    pub(crate) fn tag(&mut self) -> [u8; TAG_BYTES] {
        let (raw, mut tag, mut written) = (self.0.as_ptr(), [0; TAG_BYTES], 0);
        // SAFETY: `raw` is a context with a key and an IV. `EVP_CipherFinal_ex` writes nothing but
        // `written`, and the last call 16 bytes to `tag`. aws-lc returns a tag only when
        // encrypting: the first call sets the direction and, without key and IV, nothing else.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(raw, null(), null_mut(), null(), null(), 1) == 1
                && ffi::EVP_CipherFinal_ex(raw, null_mut(), &mut written) == 1
                && ffi::EVP_CIPHER_CTX_ctrl(
                    raw,
                    ffi::EVP_CTRL_AEAD_GET_TAG,
                    TAG_LEN,
                    tag.as_mut_ptr().cast(),
                ) == 1
        };
        assert!(done, "a context with an IV has a tag");
        tag
    }
}

impl Drop for GcmContext {
    fn drop(&mut self) {
        // SAFETY: the context came from `EVP_CIPHER_CTX_new` and is not used again. aws-lc wipes
        // it.
        unsafe { ffi::EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

/// XORs `text` with ChaCha20's keystream from block `first` on. The block counter must not wrap
/// around within `text`.
pub(crate) fn chacha20(key: &[u8; 32], nonce: &[u8; NONCE_BYTES], first: u32, text: &mut [u8]) {
    let bytes = text.as_mut_ptr();
    // SAFETY: input and output are the same buffer, which the function permits, of the length that
    // is passed; key and nonce have the lengths of ChaCha20.
    unsafe {
        ffi::CRYPTO_chacha_20(bytes, bytes, text.len(), key.as_ptr(), nonce.as_ptr(), first);
    }
}

/// [`TAG_BYTES`] as aws-lc takes it.
const TAG_LEN: c_int = 16;
