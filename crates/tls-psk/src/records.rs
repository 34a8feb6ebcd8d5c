//! Tracks the headers of TLS records in a byte stream (RFC 8446 section 5.1).

use wire::tls::{HEADER_BYTES, content};

/// Records seen in one direction.
#[derive(Debug, Default)]
pub(super) struct TlsRecordTracker {
    header: [u8; HEADER_BYTES],
    /// Bytes received of `header`.
    have: usize,
    /// Bytes left of the record's content.
    left: usize,
    /// An encrypted record was seen.
    pub(super) encrypted: bool,
    /// The last record is a plaintext alert.
    pub(super) alert: bool,
}

impl TlsRecordTracker {
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let here = bytes.len().min(self.left);
            self.left -= here;
            bytes = bytes.get(here..).unwrap_or_default();
            let Some((&byte, rest)) = bytes.split_first() else { break };
            bytes = rest;
            if let Some(at) = self.header.get_mut(self.have) {
                *at = byte;
                self.have += 1;
            }
            if self.have == HEADER_BYTES {
                let [kind, _, _, high, low] = self.header;
                self.encrypted |= kind == content::APPLICATION_DATA;
                self.alert = kind == content::ALERT;
                self.left = usize::from(u16::from_be_bytes([high, low]));
                self.have = 0;
            }
        }
    }

    /// Returns whether the last record is complete.
    pub(super) fn is_whole(&self) -> bool {
        self.have == 0 && self.left == 0
    }
}
