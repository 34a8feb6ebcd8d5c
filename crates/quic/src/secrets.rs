//! Secrets of an endpoint: connection IDs, stateless reset tokens and address validation tokens,
//! all derived from one seed.
//!
//! They implement quinn-proto's traits with HMAC and HKDF of the rustls provider; nothing here
//! draws random numbers.

use std::sync::{Arc, Mutex, PoisonError};

use abi::crypto::{Aead, CryptoProvider, NONCE_BYTES, Suite};
use abi::quic::QuicSteering;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use rustls::crypto::tls13::{Hkdf, OkmBlock};
use zeroize::Zeroizing;

use crate::keys::expand_label;

/// Length of our connection IDs: quinn's default, hard to guess as RFC 9000 section 5.1 demands.
pub const CID_BYTES: u8 = 8;

/// Connection IDs tried per queue until one leads here. All of them lead elsewhere with a
/// probability of less than 10^-27.
const TRIES_PER_QUEUE: u32 = 64;

/// A secret from which keys are derived.
#[derive(Clone)]
pub(crate) struct EndpointSecrets {
    hkdf: &'static dyn Hkdf,
    key: Zeroizing<[u8; 32]>,
}

impl EndpointSecrets {
    pub(crate) fn new(hkdf: &'static dyn Hkdf, seed: &[u8; 32]) -> Self {
        Self { hkdf, key: Zeroizing::new(*seed) }
    }

    /// Derives the secret of one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Self {
        let expander = self.hkdf.extract_from_secret(None, &self.key[..]);
        let mut key = Zeroizing::new([0; 32]);
        // 32 bytes are within HKDF's limit, so this cannot fail.
        let _ = expand_label(&*expander, purpose, &mut key[..]);
        Self { hkdf: self.hkdf, key }
    }

    /// Returns the key bytes, for another generator to use as a seed.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        *self.key
    }

    fn sign(&self, data: &[u8]) -> [u8; 32] {
        let tag = self.hkdf.hmac_sign(&OkmBlock::new(&self.key[..]), data);
        let mut out = [0; 32];
        for (to, from) in out.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        out
    }
}

/// Signs stateless reset tokens (RFC 9000 section 10.3.2).
impl HmacKey for EndpointSecrets {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        for (to, from) in signature_out.iter_mut().zip(Self::sign(self, data)) {
            *to = from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Constant time: every byte is compared.
        let ours = Self::sign(self, data);
        let differ = ours.iter().zip(signature).fold(0, |differ, (a, b)| differ | (a ^ b));
        if differ == 0 && signature.len() == ours.len() { Ok(()) } else { Err(CryptoError) }
    }
}

/// Derives the keys of address validation tokens (RFC 9000 section 8.1).
pub(crate) struct TokenKey {
    pub(crate) secrets: EndpointSecrets,
    pub(crate) crypto: Arc<dyn CryptoProvider>,
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let hkdf = self.secrets.hkdf;
        let expander = hkdf.extract_from_secret(Some(random_bytes), &self.secrets.key[..]);
        let mut key = Zeroizing::new([0; 32]);
        let made = expand_label(&*expander, b"outboard token", &mut key[..]);
        Box::new(TokenAead(made.and_then(|()| self.crypto.aead(Suite::Aes256Gcm, &key[..]))))
    }
}

/// AEAD key of a single token. Each token has its own key, so the nonce is constant.
struct TokenAead(Option<Box<dyn Aead>>);

impl AeadKey for TokenAead {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let aead = self.0.as_ref().ok_or(CryptoError)?;
        let tag = aead.seal(&[0; NONCE_BYTES], additional_data, data);
        data.extend_from_slice(&tag);
        Ok(())
    }

    fn open<'a>(
        &self,
        data: &'a mut [u8],
        additional_data: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let aead = self.0.as_ref().ok_or(CryptoError)?;
        let opened = aead.open(&[0; NONCE_BYTES], additional_data, data);
        data.get_mut(..opened.map_err(|_| CryptoError)?).ok_or(CryptoError)
    }
}

/// Connection IDs that were generated and not yet assigned to a connection.
pub(crate) type FreshCids = Arc<Mutex<Vec<ConnectionId>>>;

/// Generates connection IDs as a keyed hash of a counter, so that observers cannot link those of
/// one connection. With steering, IDs that lead to another host's queue are skipped.
pub(crate) struct CidGenerator {
    pub(crate) secrets: EndpointSecrets,
    pub(crate) count: u64,
    pub(crate) steering: Option<(QuicSteering, usize)>,
    pub(crate) fresh: FreshCids,
}

impl CidGenerator {
    fn next(&mut self) -> ConnectionId {
        self.count += 1;
        let hash = self.secrets.sign(&self.count.to_be_bytes());
        ConnectionId::new(&hash[..usize::from(CID_BYTES)])
    }

    fn is_steered_here(&self, id: &ConnectionId) -> bool {
        self.steering.is_none_or(|(steering, queue)| steering.queue_of(id) == queue)
    }
}

impl ConnectionIdGenerator for CidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        // About one ID in `queues` leads here, so the loop ends early except with negligible
        // probability.
        let mut id = self.next();
        for _ in 0..TRIES_PER_QUEUE * self.steering.map_or(0, |(steering, _)| steering.queues) {
            if self.is_steered_here(&id) {
                break;
            }
            id = self.next();
        }
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        id
    }

    fn cid_len(&self) -> usize {
        usize::from(CID_BYTES)
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}
