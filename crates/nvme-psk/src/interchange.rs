//! The interchange format of configured keys, `NVMeTLSkey-1:hh:BASE64(key, CRC-32):` (NVM Express
//! over TCP 1.1, section 3.6.1.5).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use zeroize::Zeroizing;

use super::PskHash;

const PREFIX: &str = "NVMeTLSkey-1:";
const CRC_BYTES: usize = 4;

/// A key as an administrator configures it at both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    hash: Option<PskHash>,
    /// 32 or 48 bytes; the length of `hash` if there is one.
    psk: Zeroizing<Vec<u8>>,
}

/// Error in a key's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// The prefix is wrong.
    #[error("an NVMe/TCP key must start with `NVMeTLSkey-1:`")]
    Prefix,
    /// The final colon is missing.
    #[error("an NVMe/TCP key must end with `:`")]
    End,
    /// The hash field is missing or unknown.
    #[error("unknown hash of the key; expected 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    Hash,
    /// The key field is not valid Base64.
    #[error("the key is not valid Base64")]
    Base64,
    /// The decoded key has neither of the two lengths.
    #[error("wrong key length; expected 32 or 48 bytes and a checksum of 4")]
    Length,
    /// The key's length is not that of its hash.
    #[error("wrong key length for its hash; expected 32 bytes with SHA-256, 48 with SHA-384")]
    HashLength,
    /// The CRC-32 does not match.
    #[error("key checksum mismatch; check the key for typing errors")]
    Checksum,
}

impl ConfiguredPsk {
    /// Creates a key from random bytes: 32 or 48, as required by the hash. Without a hash the key
    /// is used unchanged for every host.
    ///
    /// # Errors
    /// [`KeyFault::Length`] and [`KeyFault::HashLength`].
    pub fn new(hash: Option<PskHash>, psk: Zeroizing<Vec<u8>>) -> Result<Self, KeyFault> {
        let by_length = of_length(psk.len()).ok_or(KeyFault::Length)?;
        if hash.is_some_and(|hash| hash != by_length) {
            return Err(KeyFault::HashLength);
        }
        Ok(Self { hash, psk })
    }

    /// Returns the hash that derives retained keys; `None` if the key is used unchanged.
    #[must_use]
    pub fn hash(&self) -> Option<PskHash> {
        self.hash
    }

    /// Returns the hash of identities: by the key's length.
    #[must_use]
    pub fn identity_hash(&self) -> PskHash {
        // `new` accepts no other length.
        of_length(self.psk.len()).unwrap_or(PskHash::Sha256)
    }

    pub(super) fn psk(&self) -> &[u8] {
        &self.psk
    }

    /// Formats the key in the interchange format.
    #[must_use]
    pub fn to_interchange(&self) -> Zeroizing<String> {
        // Buffers have their final capacity: a reallocation would free memory that holds the key.
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.psk.len() + CRC_BYTES));
        bytes.extend_from_slice(&self.psk);
        bytes.extend_from_slice(&crc32(&self.psk));
        let hash = self.hash.map_or("00", PskHash::id);
        let key = Zeroizing::new(STANDARD.encode(&bytes));
        let parts = [PREFIX, hash, ":", &key, ":"];
        let mut text = Zeroizing::new(String::with_capacity(parts.map(str::len).iter().sum()));
        parts.iter().for_each(|part| text.push_str(part));
        text
    }
}

impl FromStr for ConfiguredPsk {
    type Err = KeyFault;

    fn from_str(text: &str) -> Result<Self, KeyFault> {
        let rest = text.strip_prefix(PREFIX).ok_or(KeyFault::Prefix)?;
        let rest = rest.strip_suffix(':').ok_or(KeyFault::End)?;
        let (hash, text) = rest.split_once(':').ok_or(KeyFault::Hash)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(PskHash::Sha256),
            "02" => Some(PskHash::Sha384),
            _ => return Err(KeyFault::Hash),
        };
        let mut bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| KeyFault::Base64)?);
        let len = bytes.len().checked_sub(CRC_BYTES).ok_or(KeyFault::Length)?;
        of_length(len).ok_or(KeyFault::Length)?;
        if bytes.get(len..) != Some(&crc32(bytes.get(..len).unwrap_or_default())) {
            return Err(KeyFault::Checksum);
        }
        bytes.truncate(len);
        Self::new(hash, bytes)
    }
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfiguredPsk").field("hash", &self.hash).finish_non_exhaustive()
    }
}

fn of_length(len: usize) -> Option<PskHash> {
    [PskHash::Sha256, PskHash::Sha384].into_iter().find(|hash| hash.bytes() == len)
}

/// CRC-32 of RFC 1952, in little endian.
fn crc32(bytes: &[u8]) -> [u8; CRC_BYTES] {
    // A 32-bit CRC in a 64-bit word.
    let [a, b, c, d, ..] = checksum(CrcAlgorithm::Crc32IsoHdlc, bytes).to_le_bytes();
    [a, b, c, d]
}
