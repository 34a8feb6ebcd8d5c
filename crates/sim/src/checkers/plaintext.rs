//! With TLS, no frame contains content of files or the beginnings of requests and responses.
//!
//! Called by [`super::frames`] for every segment that a device sends; searches at every offset.

use crate::content::{self, VersionCatalog};

/// Eight-byte strings that occur in the head of every request or response.
const HEADS: [u64; 6] = [
    u64::from_le_bytes(*b"HTTP/1.1"),
    u64::from_le_bytes(*b"Host: si"),
    u64::from_le_bytes(*b"BREW /po"),
    u64::from_le_bytes(*b"Content-"),
    u64::from_le_bytes(*b"Server: "),
    u64::from_le_bytes(*b"Date: Mo"),
];

/// Searches a segment's payload for plaintext.
///
/// # Errors
/// Describes the plaintext found.
pub(crate) fn find_plaintext(payload: &[u8], known: &VersionCatalog) -> Result<(), String> {
    for (at, window) in payload.windows(8).enumerate() {
        let Some(&word) = window.first_chunk() else { break };
        if HEADS.contains(&u64::from_le_bytes(word)) {
            let text = String::from_utf8_lossy(window);
            return Err(format!("plaintext at {at} of {}: {text:?}", payload.len()));
        }
    }
    match content::find(payload, known) {
        Some((at, version)) => {
            let len = payload.len();
            Err(format!("plaintext at {at} of {len}: content of version {version:016x}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_content_are_seen() {
        let mut known = VersionCatalog::default();
        known.add(5, 0, 4_000);
        assert!(find_plaintext(b"HTTP/1.", &known).is_ok());
        assert!(find_plaintext(b"\x17\x03\x03GET / HTTP/1.1\r\n", &known).is_err());
        let mut bytes = [0; 64];
        content::fill(5, 1_003, &mut bytes);
        assert!(find_plaintext(&bytes, &known).is_err());
    }
}
