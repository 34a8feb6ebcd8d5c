//! Framing of TLS records: headers, nonces, associated data, and positions in a run of records.
//!
//! Host and device both frame records and must agree to the byte: RFC 8446 section 5, and RFC 5246
//! section 6 for the AEAD suites (RFC 5288, RFC 7905). There are no keys and no encryption here.

pub mod client_hello;

/// Length of a record header.
pub const HEADER_BYTES: usize = 5;
/// Maximum content of a record (RFC 8446 section 5.1).
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Maximum length of a record after its header: 2048 bytes of expansion (RFC 5246 section 6.2.3).
pub const RECORD_BYTES_MAX: usize = CONTENT_BYTES_MAX + 2048;
/// Maximum length of a TLS 1.3 record after its header (RFC 8446 section 5.2).
pub const RECORD_BYTES_MAX_13: usize = CONTENT_BYTES_MAX + 256;
/// Length of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Length of an authentication tag.
pub const TAG_BYTES: usize = 16;
/// Part of the nonce that TLS 1.2 with AES-GCM sends in each record (RFC 5288 section 3).
const EXPLICIT_BYTES: usize = 8;

/// Content types of records (RFC 8446 section 5.1).
pub mod content {
    /// Change of cipher spec; only during a handshake.
    pub const CHANGE_CIPHER_SPEC: u8 = 20;
    /// An alert.
    pub const ALERT: u8 = 21;
    /// Handshake or post-handshake message.
    pub const HANDSHAKE: u8 = 22;
    /// Application data; in TLS 1.3 the outer type of every encrypted record.
    pub const APPLICATION_DATA: u8 = 23;
}

/// Level of an alert that ends a connection (RFC 8446 section 6).
pub const FATAL: u8 = 2;

/// Returns a fatal alert in an unencrypted record. The record's version is TLS 1.2 for every
/// version of TLS (RFC 8446 section 5.1).
#[must_use]
pub const fn fatal_alert(description: u8) -> [u8; 7] {
    [content::ALERT, 3, 3, 0, 2, FATAL, description]
}

/// Version of the record layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsRecordVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// Framing of the encrypted records of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TlsFraming {
    /// Version of the record layer.
    pub version: TlsRecordVersion,
    /// True if part of the nonce is sent in the record: TLS 1.2 with AES-GCM.
    pub explicit_nonce: bool,
}

/// Header of a record, by which an autonomous device recognizes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsRecordHeader {
    /// Content type; in TLS 1.3 the outer one.
    pub kind: u8,
    /// Length of the record after the header.
    pub len: u16,
}

impl TlsFraming {
    /// Maximum of [`Self::full_header_len`].
    pub const FULL_HEADER_BYTES_MAX: usize = HEADER_BYTES + EXPLICIT_BYTES;

    /// Returns the length before the ciphertext: the header and the explicit part of a nonce.
    #[must_use]
    pub const fn full_header_len(self) -> usize {
        if self.explicit_nonce { HEADER_BYTES + EXPLICIT_BYTES } else { HEADER_BYTES }
    }

    /// Returns the length that the ciphertext has on top of the content: TLS 1.3's inner content
    /// type.
    #[must_use]
    pub const fn inner_type_len(self) -> usize {
        match self.version {
            TlsRecordVersion::Tls12 => 0,
            TlsRecordVersion::Tls13 => 1,
        }
    }

    /// Returns the length that a record has on top of its content.
    #[must_use]
    pub const fn overhead(self) -> usize {
        self.full_header_len() + self.inner_type_len() + TAG_BYTES
    }

    /// Parses the header of an encrypted record: the magic pattern of the autonomous offload (ANO
    /// section 5.2). `None` for any other bytes.
    #[must_use]
    pub fn parse(self, header: [u8; HEADER_BYTES]) -> Option<TlsRecordHeader> {
        let [kind, major, minor, high, low] = header;
        let len = u16::from_be_bytes([high, low]);
        let known = match self.version {
            TlsRecordVersion::Tls13 => kind == content::APPLICATION_DATA,
            TlsRecordVersion::Tls12 => (content::ALERT..=content::APPLICATION_DATA).contains(&kind),
        };
        let most = match self.version {
            TlsRecordVersion::Tls13 => RECORD_BYTES_MAX_13,
            TlsRecordVersion::Tls12 => RECORD_BYTES_MAX,
        };
        let least = self.overhead() - HEADER_BYTES;
        let fits = (least..=most).contains(&usize::from(len));
        (known && [major, minor] == [3, 3] && fits).then_some(TlsRecordHeader { kind, len })
    }

    /// Returns the nonce of a record to send (RFC 8446 section 5.3). With TLS 1.2 and AES-GCM,
    /// [`Self::write_full_header`] sends its last eight bytes; a receiver uses the bytes that it
    /// received.
    #[must_use]
    pub fn nonce(self, iv: &[u8; NONCE_BYTES], number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = *iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Returns the nonce of a received record; `full_header_len` is what precedes its ciphertext.
    #[must_use]
    pub fn received_nonce(
        self,
        iv: &[u8; NONCE_BYTES],
        number: u64,
        front: &[u8; Self::FULL_HEADER_BYTES_MAX],
    ) -> [u8; NONCE_BYTES] {
        let mut nonce = self.nonce(iv, number);
        if self.explicit_nonce {
            nonce[NONCE_BYTES - EXPLICIT_BYTES..].copy_from_slice(&front[HEADER_BYTES..]);
        }
        nonce
    }

    /// Writes what precedes the ciphertext of a record with `content_len` bytes of content. Returns
    /// its length.
    pub fn write_full_header(
        self,
        kind: u8,
        content_len: usize,
        nonce: &[u8; NONCE_BYTES],
        out: &mut [u8; Self::FULL_HEADER_BYTES_MAX],
    ) -> usize {
        let outer = match self.version {
            TlsRecordVersion::Tls13 => content::APPLICATION_DATA,
            TlsRecordVersion::Tls12 => kind,
        };
        let len = length(content_len + self.overhead() - HEADER_BYTES);
        out[..HEADER_BYTES].copy_from_slice(&[outer, 3, 3, len[0], len[1]]);
        out[HEADER_BYTES..].copy_from_slice(&nonce[NONCE_BYTES - EXPLICIT_BYTES..]);
        self.full_header_len()
    }

    /// Returns the associated data of a record, and its length. In TLS 1.3 it is the header (RFC
    /// 8446 section 5.2); in TLS 1.2 number, type, version and length of the plaintext (RFC 5246
    /// section 6.2.3.3).
    #[must_use]
    pub fn aad(self, number: u64, kind: u8, text_len: usize) -> ([u8; 13], usize) {
        let mut aad = [0; 13];
        match self.version {
            TlsRecordVersion::Tls13 => {
                let len = length(text_len + TAG_BYTES);
                aad[..5].copy_from_slice(&[content::APPLICATION_DATA, 3, 3, len[0], len[1]]);
                (aad, 5)
            }
            TlsRecordVersion::Tls12 => {
                aad[..8].copy_from_slice(&number.to_be_bytes());
                aad[8..11].copy_from_slice(&[kind, 3, 3]);
                aad[11..].copy_from_slice(&length(text_len));
                (aad, 13)
            }
        }
    }
}

/// Returns the bytes of a length field. Callers keep within [`RECORD_BYTES_MAX`].
fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Content cut into consecutive records, all of the same length except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsRecordRun {
    /// Length of the content.
    pub content_bytes: u64,
    /// Length of the content of each record but the last; at least 1.
    pub record_content_bytes: u32,
    /// Length that a record has on top of its content.
    pub overhead: u32,
}

/// A position in a [`TlsRecordRun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsRecordPosition {
    /// Index of the record.
    pub index: u64,
    /// Offset in the record, header included.
    pub offset: u32,
}

impl TlsRecordRun {
    /// Returns the number of records; 1 if there is no content.
    #[must_use]
    pub const fn records(&self) -> u64 {
        let count = self.content_bytes.div_ceil(self.record_content_bytes as u64);
        if count == 0 { 1 } else { count }
    }

    /// Returns the length of all records together.
    #[must_use]
    pub const fn wire_len(&self) -> u64 {
        self.content_bytes + self.records() * self.overhead as u64
    }

    /// Returns the position of a byte of the encoded run. Its end is the start of the record after
    /// the last.
    #[must_use]
    pub fn position(&self, at: u64) -> TlsRecordPosition {
        let full = u64::from(self.record_content_bytes + self.overhead);
        if at >= self.wire_len() {
            return TlsRecordPosition { index: self.records(), offset: 0 };
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than `full`, 32 bits wide")]
        TlsRecordPosition { index: at / full, offset: (at % full) as u32 }
    }

    /// Returns the offset in the encoded run at which a record begins.
    #[must_use]
    pub fn record_start(&self, index: u64) -> u64 {
        (index * u64::from(self.record_content_bytes + self.overhead)).min(self.wire_len())
    }

    /// Returns the length of a record's content.
    #[must_use]
    pub fn record_content_len(&self, index: u64) -> u32 {
        let before = index.saturating_mul(u64::from(self.record_content_bytes));
        let left =
            self.content_bytes.saturating_sub(before).min(u64::from(self.record_content_bytes));
        #[expect(clippy::cast_possible_truncation, reason = "at most `record_content`")]
        let left = left as u32;
        left
    }

    /// Returns the length of the content before a position; `full_header_len` bytes precede each
    /// record's content.
    #[must_use]
    pub fn content_before(&self, place: TlsRecordPosition, front: u32) -> u64 {
        let here = place.offset.saturating_sub(front).min(self.record_content_len(place.index));
        let before = place.index.saturating_mul(u64::from(self.record_content_bytes));
        before.min(self.content_bytes) + u64::from(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TLS13: TlsFraming =
        TlsFraming { version: TlsRecordVersion::Tls13, explicit_nonce: false };
    const GCM12: TlsFraming = TlsFraming { version: TlsRecordVersion::Tls12, explicit_nonce: true };

    #[test]
    fn an_alert_is_a_record_of_two_bytes() {
        assert_eq!(fatal_alert(80), [21, 3, 3, 0, 2, 2, 80]);
    }

    #[test]
    fn overheads_are_those_of_the_rfcs() {
        assert_eq!((TLS13.overhead(), GCM12.overhead()), (22, 29));
        let chacha = TlsFraming { explicit_nonce: false, ..GCM12 };
        assert_eq!(chacha.overhead(), 21);
    }

    #[test]
    fn the_magic_pattern() {
        assert_eq!(TLS13.parse([23, 3, 3, 0, 17]), Some(TlsRecordHeader { kind: 23, len: 17 }));
        assert!(TLS13.parse([23, 3, 3, 0x41, 0]).is_some(), "the longest");
        for bad in [[22, 3, 3, 0, 17], [23, 3, 1, 0, 17], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1]] {
            assert_eq!(TLS13.parse(bad), None);
        }
        assert!(GCM12.parse([21, 3, 3, 0, 24]).is_some());
        assert!(GCM12.parse([20, 3, 3, 0, 24]).is_none());
        assert!(GCM12.parse([21, 3, 3, 0, 23]).is_none());
    }

    #[test]
    fn positions_in_a_run() {
        let run = TlsRecordRun { content_bytes: 250, record_content_bytes: 100, overhead: 22 };
        assert_eq!((run.records(), run.wire_len()), (3, 316));
        assert_eq!(run.position(0), TlsRecordPosition { index: 0, offset: 0 });
        assert_eq!(run.position(121), TlsRecordPosition { index: 0, offset: 121 });
        assert_eq!(run.position(122), TlsRecordPosition { index: 1, offset: 0 });
        assert_eq!(run.position(315), TlsRecordPosition { index: 2, offset: 71 });
        assert_eq!(run.position(316), TlsRecordPosition { index: 3, offset: 0 });
        assert_eq!((run.record_start(2), run.record_start(3)), (244, 316));
        assert_eq!(
            (run.record_content_len(1), run.record_content_len(2), run.record_content_len(3)),
            (100, 50, 0)
        );
        let before = |at: u64| run.content_before(run.position(at), 5);
        assert_eq!((before(3), before(5), before(6), before(105)), (0, 0, 1, 100));
        assert_eq!((before(121), before(122), before(128), before(316)), (100, 100, 101, 250));
        let empty = TlsRecordRun { content_bytes: 0, ..run };
        assert_eq!((empty.records(), empty.wire_len()), (1, 22));
    }
}
