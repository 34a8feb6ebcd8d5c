//! Follows the headers of TLS records through a stream: RFC 8446 section 5.1.

use wire::tls::{HEADER_BYTES, content};

/// What kinds of records one direction has had.
#[derive(Debug, Default)]
pub(super) struct Records {
    header: [u8; HEADER_BYTES],
    /// Bytes of `header` that are there.
    have: usize,
    /// Bytes of the record's content that are to come.
    left: usize,
    /// There was one that is sealed.
    pub(super) sealed: bool,
    /// The last one is an alert in the clear.
    pub(super) alert: bool,
}

impl Records {
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
                self.sealed |= kind == content::APPLICATION_DATA;
                self.alert = kind == content::ALERT;
                self.left = usize::from(u16::from_be_bytes([high, low]));
                self.have = 0;
            }
        }
    }

    /// Whether the last record is whole.
    pub(super) fn is_whole(&self) -> bool {
        self.have == 0 && self.left == 0
    }
}
