//! Pre-shared keys of NVMe/TCP's secure channel, from what is configured to what TLS takes: NVM
//! Express over TCP 1.1, section 3.6.1.
//!
//! A configured key ([`ConfiguredPsk`], written in the interchange format) becomes a retained one
//! of a host ([`RetainedPsk`]), and that a secret of TLS with an identity ([`TlsPsk`]), of a host
//! and a subsystem. `outboard` calls it; the handshake itself is crate `tls-psk`'s.
//!
//! Two derivations are in use ([`Derivation`]): both ends have to have the same. Keys are wiped
//! when they are dropped, and no `Debug` shows one.
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

/// The hash of a key, and of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PskHash {
    /// SHA-256, with keys of 32 bytes: for AES-128-GCM.
    Sha256,
    /// SHA-384, with keys of 48 bytes: for AES-256-GCM.
    Sha384,
}

impl PskHash {
    /// Bytes of a digest, and of a key.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// What it is called in keys and identities.
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

/// How HKDF-Expand-Label writes its label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Derivation {
    /// As RFC 8446 section 7.1 has it, and the specification asks for: Linux's own, SPDK, libnvme
    /// from 1.14 on.
    #[default]
    Rfc8446,
    /// As libnvme up to 1.13 did: the length in little endian, and no octets of length before
    /// label and context.
    Libnvme,
}

/// Version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityVersion {
    /// `NVMe0R..`: the names alone.
    Zero,
    /// `NVMe1R..`: names and a digest of the key.
    One,
}

/// A host's key: what comes of a configured one.
#[derive(Clone)]
pub struct RetainedPsk {
    hash: PskHash,
    psk: Zeroizing<Vec<u8>>,
}

/// What TLS takes.
#[derive(Clone)]
pub struct TlsPsk {
    /// What the key is called on the wire.
    pub identity: String,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
    /// The hash that goes with it.
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
    /// The key of a host: section 3.6.1.3. The configured one itself where it says so.
    ///
    /// None where the name has no room in a label (255 bytes; an NQN has 223 at most).
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
    /// The digest that identities of version 1 have: section 3.6.1.3, in Base64.
    #[must_use]
    pub fn digest(&self, hostnqn: &str, subnqn: &str) -> String {
        let key = hmac::Key::new(self.hash.hmac(), &self.psk);
        let text = format!("{hostnqn} {subnqn} NVMe-over-Fabrics");
        STANDARD.encode(hmac::sign(&key, text.as_bytes()))
    }

    /// What TLS takes between this host and a subsystem: section 3.6.1.3.
    ///
    /// None where the names are too long together for a label of RFC 8446 (version 0: 245 bytes).
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

/// How much HKDF makes.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of HKDF-Extract without salt, as long as the hash: RFC 5869, and RFC 8446
/// section 7.1.
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
