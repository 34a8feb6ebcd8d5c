//! The interchange format of configured keys: `NVMeTLSkey-1:hh:BASE64(key, CRC-32):`, NVM Express
//! over TCP 1.1, section 3.6.1.5.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use zeroize::Zeroizing;

use super::PskHash;

const PREFIX: &str = "NVMeTLSkey-1:";
const CRC_BYTES: usize = 4;

/// A key as an administrator gives it to both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    hash: Option<PskHash>,
    /// 32 or 48 bytes; of `hash`'s length where there is one.
    psk: Zeroizing<Vec<u8>>,
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// It begins otherwise.
    #[error("a key of NVMe/TCP begins with `NVMeTLSkey-1:`")]
    Prefix,
    /// It ends otherwise.
    #[error("a key of NVMe/TCP ends with `:`")]
    End,
    /// The field between the first two colons.
    #[error("the hash of a key is 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    Hash,
    /// What is between the last two colons.
    #[error("what a key holds is no Base64")]
    Base64,
    /// It decodes to neither of the two lengths.
    #[error("a key has 32 or 48 bytes, and 4 of checksum")]
    Length,
    /// It is 32 bytes of SHA-384 or 48 of SHA-256.
    #[error("a key with SHA-256 has 32 bytes and one with SHA-384 has 48")]
    HashLength,
    /// A letter is wrong, or was lost.
    #[error("the checksum of the key does not match: a letter is wrong")]
    Checksum,
}

impl ConfiguredPsk {
    /// A key of random bytes: 32 or 48, and as many as the hash has. Without a hash it is used as
    /// it is, instead of one made from it for each host.
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

    /// The hash that makes a host's key of it; none where it is one already.
    #[must_use]
    pub fn hash(&self) -> Option<PskHash> {
        self.hash
    }

    /// The hash of identities: that of the key, or by its length.
    #[must_use]
    pub fn identity_hash(&self) -> PskHash {
        // `new` let no other length through.
        of_length(self.psk.len()).unwrap_or(PskHash::Sha256)
    }

    /// The key itself.
    pub(super) fn psk(&self) -> &[u8] {
        &self.psk
    }

    /// It in the interchange format.
    #[must_use]
    pub fn to_interchange(&self) -> Zeroizing<String> {
        // Nothing grows: memory that was moved from is freed as it is, with the key in it.
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

/// The CRC-32 of RFC 1952, lowest byte first.
fn crc32(bytes: &[u8]) -> [u8; CRC_BYTES] {
    // A CRC of 32 bits, in a word that has room for longer ones.
    let [a, b, c, d, ..] = checksum(CrcAlgorithm::Crc32IsoHdlc, bytes).to_le_bytes();
    [a, b, c, d]
}
