//! Pre-shared keys of NVMe/TCP's secure channel: from the configured key to the TLS PSK (NVM
//! Express over TCP 1.1, section 3.6.1).
//!
//! A configured key ([`ConfiguredPsk`], in the interchange format) is converted to a host's
//! retained key ([`RetainedPsk`]), and this to a TLS secret and identity ([`TlsPsk`]) for a host
//! and a subsystem. Called by `outboard`; the handshake is in crate `tls-psk`.
//!
//! Two derivations are in use ([`Derivation`]), and both ends have to use the same. Keys are zeroed
//! when they are dropped, and no `Debug` prints one.
#![forbid(unsafe_code)]

mod interchange;

#[cfg(test)]
mod tests;

use std::fmt;

use aws_lc_rs::{hkdf, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

pub use interchange::{ConfiguredPsk, KeyFault};

/// Hash of a key and of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PskHash {
    /// SHA-256, with keys of 32 bytes, for AES-128-GCM.
    Sha256,
    /// SHA-384, with keys of 48 bytes, for AES-256-GCM.
    Sha384,
}

impl PskHash {
    /// Returns the length of a digest, and of a key, in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// Returns the hash identifier in keys and identities.
    const fn id(self) -> &'static str {
        match self {
            Self::Sha256 => "01",
            Self::Sha384 => "02",
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Sha256 => hkdf::HKDF_SHA256,
            Self::Sha384 => hkdf::HKDF_SHA384,
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
        }
    }
}

/// Encoding of the label in HKDF-Expand-Label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Derivation {
    /// As in RFC 8446 section 7.1, which the specification requires: Linux, SPDK, libnvme since
    /// 1.14.
    #[default]
    Rfc8446,
    /// As in libnvme up to 1.13: the length in little endian, and no length octets before label and
    /// context.
    Libnvme,
}

/// Version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityVersion {
    /// `NVMe0R..`: the names only.
    Zero,
    /// `NVMe1R..`: the names and a digest of the key.
    One,
}

/// A host's retained key, derived from a configured key.
#[derive(Clone)]
pub struct RetainedPsk {
    hash: PskHash,
    psk: Zeroizing<Vec<u8>>,
}

/// A pre-shared key for TLS.
#[derive(Clone)]
pub struct TlsPsk {
    /// Identity, sent in the ClientHello.
    pub identity: String,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
    /// Hash of the key.
    pub hash: PskHash,
}

impl fmt::Debug for RetainedPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetainedPsk").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPsk").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl ConfiguredPsk {
    /// Derives the retained key of a host (section 3.6.1.3); it is the configured key itself if
    /// that has no hash.
    ///
    /// Returns `None` if the NQN does not fit into a label (255 bytes; a valid NQN has at most
    /// 223).
    #[must_use]
    pub fn retained(&self, hostnqn: &str, derivation: Derivation) -> Option<RetainedPsk> {
        let hash = self.identity_hash();
        let psk = match self.hash() {
            None => Zeroizing::new(self.psk().to_vec()),
            Some(hash) => {
                expand_label(hash, self.psk(), "HostNQN", hostnqn.as_bytes(), derivation)?
            }
        };
        Some(RetainedPsk { hash, psk })
    }
}

impl RetainedPsk {
    /// Returns the digest in identities of version 1, in Base64 (section 3.6.1.3).
    #[must_use]
    pub fn digest(&self, hostnqn: &str, subnqn: &str) -> String {
        let key = hmac::Key::new(self.hash.hmac(), &self.psk);
        let text = format!("{hostnqn} {subnqn} NVMe-over-Fabrics");
        STANDARD.encode(hmac::sign(&key, text.as_bytes()))
    }

    /// Derives the TLS key for this host and a subsystem (section 3.6.1.3).
    ///
    /// Returns `None` if both names together are too long for a label of RFC 8446 (version 0: 245
    /// bytes).
    #[must_use]
    pub fn tls(
        &self,
        version: IdentityVersion,
        hostnqn: &str,
        subnqn: &str,
        derivation: Derivation,
    ) -> Option<TlsPsk> {
        let hash = self.hash.id();
        let (identity, context) = match version {
            IdentityVersion::Zero => {
                let identity = format!("NVMe0R{hash} {hostnqn} {subnqn}");
                (identity.clone(), identity)
            }
            IdentityVersion::One => {
                let digest = self.digest(hostnqn, subnqn);
                let identity = format!("NVMe1R{hash} {hostnqn} {subnqn} {digest}");
                (identity, format!("{hash} {digest}"))
            }
        };
        let context = context.as_bytes();
        let secret = expand_label(self.hash, &self.psk, "nvme-tls-psk", context, derivation)?;
        Some(TlsPsk { identity, secret, hash: self.hash })
    }
}

/// Output length of HKDF in bytes.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Extract without a salt (RFC 5869), then HKDF-Expand-Label (RFC 8446 section 7.1), with the
/// hash's length.
fn expand_label(
    hash: PskHash,
    psk: &[u8],
    label: &str,
    context: &[u8],
    derivation: Derivation,
) -> Option<Zeroizing<Vec<u8>>> {
    const PREFIX: &str = "tls13 ";
    let octet = |len: usize| u8::try_from(len).ok();
    let length = u16::try_from(hash.bytes()).ok()?;
    let mut info = Vec::new();
    match derivation {
        Derivation::Rfc8446 => {
            info.extend(length.to_be_bytes());
            info.push(octet(PREFIX.len() + label.len())?);
            info.extend(PREFIX.bytes().chain(label.bytes()));
            info.push(octet(context.len())?);
        }
        Derivation::Libnvme => {
            info.extend(length.to_le_bytes());
            info.extend(PREFIX.bytes().chain(label.bytes()));
        }
    }
    info.extend(context);
    let prk = hkdf::Salt::new(hash.hkdf(), &[]).extract(psk);
    let mut out = Zeroizing::new(vec![0; hash.bytes()]);
    prk.expand(&[&info], Length(out.len())).ok()?.fill(&mut out).ok()?;
    Some(out)
}
