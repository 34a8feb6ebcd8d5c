//! Secrets of an endpoint: connection IDs, tokens of stateless resets and of address validation,
//! all out of one seed.
//!
//! quinn-proto asks for them by traits. They stand on HMAC and HKDF of the provider that rustls
//! was given, so that nothing here draws randomness.

use std::sync::{Arc, Mutex, PoisonError};

use abi::crypto::{Aead, CryptoProvider, NONCE_BYTES, Suite};
use abi::quic::Steering;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use rustls::crypto::tls13::{Hkdf, OkmBlock};
use zeroize::Zeroizing;

use crate::keys::expand_label;

/// Bytes of our connection IDs: RFC 9000, section 5.1, wants them hard to guess; quinn's default.
pub const CID_BYTES: u8 = 8;

/// Connection IDs that are tried for each queue there is: fewer lead here once in 10^27 times.
const TRIES_PER_QUEUE: u32 = 64;

/// A key that everything else is derived from.
#[derive(Clone)]
pub(crate) struct Secrets {
    hkdf: &'static dyn Hkdf,
    key: Zeroizing<[u8; 32]>,
}

impl Secrets {
    pub(crate) fn new(hkdf: &'static dyn Hkdf, seed: &[u8; 32]) -> Self {
        Self { hkdf, key: Zeroizing::new(*seed) }
    }

    /// Another key, for one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Self {
        let expander = self.hkdf.extract_from_secret(None, &self.key[..]);
        let mut key = Zeroizing::new([0; 32]);
        // 32 bytes are fewer than HKDF gives.
        let _ = expand_label(&*expander, purpose, &mut key[..]);
        Self { hkdf: self.hkdf, key }
    }

    /// The key, where somebody else draws from it.
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

/// Signs tokens of stateless resets: RFC 9000, section 10.3.2.
impl HmacKey for Secrets {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        for (to, from) in signature_out.iter_mut().zip(Self::sign(self, data)) {
            *to = from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // In constant time: all bytes are looked at.
        let ours = Self::sign(self, data);
        let differ = ours.iter().zip(signature).fold(0, |differ, (a, b)| differ | (a ^ b));
        if differ == 0 && signature.len() == ours.len() { Ok(()) } else { Err(CryptoError) }
    }
}

/// Makes keys for tokens of address validation: section 8.1.
pub(crate) struct TokenKey {
    pub(crate) secrets: Secrets,
    pub(crate) crypto: Arc<dyn CryptoProvider>,
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let hkdf = self.secrets.hkdf;
        let expander = hkdf.extract_from_secret(Some(random_bytes), &self.secrets.key[..]);
        let mut key = Zeroizing::new([0; 32]);
        let made = expand_label(&*expander, b"outboard token", &mut key[..]);
        Box::new(OneTime(made.and_then(|()| self.crypto.aead(Suite::Aes256Gcm, &key[..]))))
    }
}

/// A key that seals one token: each has one of its own, so the nonce is constant.
struct OneTime(Option<Box<dyn Aead>>);

impl AeadKey for OneTime {
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

/// Connection IDs that were made and not yet given to a connection.
pub(crate) type Fresh = Arc<Mutex<Vec<ConnectionId>>>;

/// Makes connection IDs: a keyed hash of a count, so that nobody can tell which belong together. Of
/// several hosts each passes over those that would lead to another.
pub(crate) struct CidGenerator {
    pub(crate) secrets: Secrets,
    pub(crate) count: u64,
    pub(crate) steering: Option<(Steering, usize)>,
    pub(crate) fresh: Fresh,
}

impl CidGenerator {
    fn next(&mut self) -> ConnectionId {
        self.count += 1;
        let hash = self.secrets.sign(&self.count.to_be_bytes());
        ConnectionId::new(&hash[..usize::from(CID_BYTES)])
    }

    fn leads_here(&self, id: &ConnectionId) -> bool {
        self.steering.is_none_or(|(steering, queue)| steering.queue_of(id) == queue)
    }
}

impl ConnectionIdGenerator for CidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        // One ID of each count of queues leads here: so long a run of others does not happen.
        let mut id = self.next();
        for _ in 0..TRIES_PER_QUEUE * self.steering.map_or(0, |(steering, _)| steering.queues) {
            if self.leads_here(&id) {
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
