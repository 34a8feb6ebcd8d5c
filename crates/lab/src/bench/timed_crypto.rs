//! A crypto provider that counts the cycles of the product's provider, for breakdowns of the host's
//! time. Reading the cycle counter costs some cycles, so runs that are compared do not use this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::crypto::{
    Aead, AeadRanges, AuthSum, BadTag, CryptoProvider, HeaderProtection, NONCE_BYTES, SAMPLE_BYTES,
    Suite, TAG_BYTES,
};
use io::clock::cycles;

/// Counted cycles, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct CycleMeter(Arc<AtomicU64>);

impl CycleMeter {
    /// Returns the cycles counted so far.
    pub(crate) fn cycles(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn time<T>(&self, f: impl FnOnce() -> T) -> T {
        let from = cycles();
        let result = f();
        self.0.fetch_add(cycles() - from, Ordering::Relaxed);
        result
    }
}

/// The product's crypto provider, with a meter.
#[derive(Debug)]
pub(crate) struct MeteredCrypto(pub(crate) CycleMeter);

struct MeteredKey<T: ?Sized>(Box<T>, CycleMeter);

impl CryptoProvider for MeteredCrypto {
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>> {
        let key = crypto::Provider.aead(suite, key)?;
        Some(Box::new(MeteredKey(key, self.0.clone())))
    }

    fn header_protection(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn HeaderProtection>> {
        let key = crypto::Provider.header_protection(suite, key)?;
        Some(Box::new(MeteredKey(key, self.0.clone())))
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        self.0.time(|| crypto::Provider.crc32c(crc, bytes))
    }

    fn crc32c_combine(&self, first: u32, second: u32, len: u64) -> u32 {
        crypto::Provider.crc32c_combine(first, second, len)
    }
}

impl HeaderProtection for MeteredKey<dyn HeaderProtection> {
    fn mask(&self, sample: &[u8; SAMPLE_BYTES]) -> [u8; 5] {
        self.1.time(|| self.0.mask(sample))
    }
}

impl Aead for MeteredKey<dyn Aead> {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        self.1.time(|| self.0.seal(nonce, aad, text))
    }

    fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    ) {
        self.1.time(|| self.0.seal_copy(nonce, aad, text, last, out));
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        self.1.time(|| self.0.open(nonce, aad, sealed))
    }

    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        self.1.time(|| self.0.apply_keystream(nonce, offset, range));
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        self.0.merge(sum, other);
    }

    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES] {
        self.1.time(|| self.0.finish(nonce, aad, text_len, sum))
    }

    fn ranges(&self) -> Box<dyn AeadRanges> {
        Box::new(MeteredKey(self.0.ranges(), self.1.clone()))
    }
}

impl AeadRanges for MeteredKey<dyn AeadRanges> {
    fn seek(&mut self, nonce: &[u8; NONCE_BYTES], sum: &AuthSum, offset: u64) {
        self.1.time(|| self.0.seek(nonce, sum, offset));
    }

    fn seal(&mut self, range: &mut [u8]) {
        self.1.time(|| self.0.seal(range));
    }

    fn open(&mut self, range: &mut [u8]) {
        self.1.time(|| self.0.open(range));
    }

    fn end_run(&mut self) -> AuthSum {
        self.1.time(|| self.0.end_run())
    }

    fn open_whole(
        &mut self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
        copy: &mut Vec<u8>,
    ) -> Result<usize, BadTag> {
        self.1.time(|| self.0.open_whole(nonce, aad, sealed, copy))
    }
}
