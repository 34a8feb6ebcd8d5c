//! Traffic secrets of a handshake that took place elsewhere, and the keys derived from them: RFC
//! 8446 section 7.
//!
//! [`super::open_state`] has one for each direction of such a session, and derives the next keys
//! from it. HKDF is that of the suite in rustls.

use alloc::vec::Vec;
use core::fmt;

use abi::crypto::Suite;
use rustls::crypto::CryptoProvider;
use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{CipherSuite, SupportedCipherSuite, Tls13CipherSuite};
use zeroize::Zeroizing;

/// End of the handshake that encrypts with a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretSender {
    Client,
    Server,
}

/// `application_traffic_secret_N` of one direction.
#[derive(Clone)]
pub(super) struct TrafficSecret {
    pub(super) suite: Suite,
    /// Suite of rustls, for its HKDF.
    rustls: &'static Tls13CipherSuite,
    pub(super) sender: SecretSender,
    bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never shows the secret.
        f.debug_struct("TrafficSecret").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl TrafficSecret {
    /// Creates a secret; `None` if `rustls` does not have the suite, or the secret does not have
    /// the length of its hash.
    pub(super) fn new(
        rustls: &CryptoProvider,
        suite: Suite,
        sender: SecretSender,
        bytes: &[u8],
    ) -> Option<Self> {
        let name = match suite {
            Suite::Aes128Gcm => CipherSuite::TLS13_AES_128_GCM_SHA256,
            Suite::Aes256Gcm => CipherSuite::TLS13_AES_256_GCM_SHA384,
            Suite::ChaCha20Poly1305 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let rustls = rustls.cipher_suites.iter().find_map(|found| match found {
            SupportedCipherSuite::Tls13(suite) if suite.common.suite == name => Some(*suite),
            _ => None,
        })?;
        let fits = bytes.len() == rustls.common.hash_provider.output_len();
        fits.then(|| Self { suite, rustls, sender, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// Replaces the secret by `application_traffic_secret_N+1`: RFC 8446 section 7.2.
    pub(super) fn update(&mut self) -> Option<()> {
        let mut next = Zeroizing::new(alloc::vec![0; self.bytes.len()]);
        self.expand(b"traffic upd", &mut next)?;
        self.bytes = next;
        Some(())
    }

    /// Returns the number of records that one key may encrypt: RFC 8446 section 5.5.
    pub(super) fn limit(&self) -> u64 {
        self.rustls.common.confidentiality_limit
    }

    /// HKDF-Expand-Label with an empty context: RFC 8446 section 7.1.
    pub(super) fn expand(&self, label: &[u8], out: &mut [u8]) -> Option<()> {
        const PREFIX: &[u8] = b"tls13 ";
        let expander = self.rustls.hkdf_provider.expander_for_okm(&OkmBlock::new(&self.bytes));
        let expander: &dyn HkdfExpander = &*expander;
        let length = u16::try_from(out.len()).ok()?.to_be_bytes();
        let label_len = [u8::try_from(PREFIX.len() + label.len()).ok()?];
        expander.expand_slice(&[&length, &label_len, PREFIX, label, &[0]], out).ok()
    }
}
