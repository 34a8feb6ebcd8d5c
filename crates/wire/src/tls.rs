//! TLS records as they look on the wire: headers, nonces, associated data, and where the records of
//! a run lie.
//!
//! Host and device both frame records, and have to agree to the byte: RFC 8446 section 5, and RFC
//! 5246 section 6 for the AEAD suites (RFC 5288, RFC 7905). There are no keys here, and nothing is
//! sealed.

pub mod client_hello;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// Most bytes of content in a record: RFC 8446 section 5.1.
pub const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Most bytes behind a header: RFC 5246 section 6.2.3, of which RFC 8446 section 5.2 uses less.
pub const RECORD_BYTES_MAX: usize = CONTENT_BYTES_MAX + 2048;
/// The same in TLS 1.3.
pub const RECORD_BYTES_MAX_13: usize = CONTENT_BYTES_MAX + 256;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The nonce's part that TLS 1.2 sends with each record under AES-GCM: RFC 5288 section 3.
const EXPLICIT_BYTES: usize = 8;

/// What a record carries: RFC 8446 section 5.1.
pub mod content {
    /// A change of cipher: only before a handshake is over.
    pub const CHANGE_CIPHER_SPEC: u8 = 20;
    /// An alert.
    pub const ALERT: u8 = 21;
    /// A message of the handshake, or after it.
    pub const HANDSHAKE: u8 = 22;
    /// The application's bytes; in TLS 1.3 the outer type of every sealed record.
    pub const APPLICATION_DATA: u8 = 23;
}

/// The level of an alert that ends a connection: RFC 8446 section 6.
pub const FATAL: u8 = 2;

/// A fatal alert as a record of its own, before there are keys. It says TLS 1.2, whatever the
/// version is (RFC 8446 section 5.1).
#[must_use]
pub const fn fatal_alert(description: u8) -> [u8; 7] {
    [content::ALERT, 3, 3, 0, 2, FATAL, description]
}

/// Which record layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// How the records of one direction are framed, once its keys are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Framing {
    /// Which record layer.
    pub version: Version,
    /// Part of the nonce travels in the record: TLS 1.2 with AES-GCM.
    pub explicit: bool,
}

/// The beginning of a record: what an autonomous device recognises it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Content type; in TLS 1.3 the outer one.
    pub kind: u8,
    /// Bytes behind the header.
    pub len: u16,
}

impl Framing {
    /// Bytes of the longest [`Self::front`].
    pub const FRONT_BYTES_MAX: usize = HEADER_BYTES + EXPLICIT_BYTES;

    /// Bytes before the sealed text: the header, and the explicit part of a nonce.
    #[must_use]
    pub const fn front(self) -> usize {
        if self.explicit { HEADER_BYTES + EXPLICIT_BYTES } else { HEADER_BYTES }
    }

    /// Bytes that the sealed text has more than the content: TLS 1.3's content type.
    #[must_use]
    pub const fn inner(self) -> usize {
        match self.version {
            Version::Tls12 => 0,
            Version::Tls13 => 1,
        }
    }

    /// Bytes that a record is longer than its content.
    #[must_use]
    pub const fn overhead(self) -> usize {
        self.front() + self.inner() + TAG_BYTES
    }

    /// Reads a header that is a sealed record's: what the magic pattern of the autonomous offload
    /// matches (Autonomous NIC Offloads, section 5.2). None for any other bytes.
    #[must_use]
    pub fn parse(self, header: [u8; HEADER_BYTES]) -> Option<RecordHeader> {
        let [kind, major, minor, high, low] = header;
        let len = u16::from_be_bytes([high, low]);
        let known = match self.version {
            Version::Tls13 => kind == content::APPLICATION_DATA,
            Version::Tls12 => (content::ALERT..=content::APPLICATION_DATA).contains(&kind),
        };
        let most = match self.version {
            Version::Tls13 => RECORD_BYTES_MAX_13,
            Version::Tls12 => RECORD_BYTES_MAX,
        };
        let least = self.overhead() - HEADER_BYTES;
        let fits = (least..=most).contains(&usize::from(len));
        (known && [major, minor] == [3, 3] && fits).then_some(RecordHeader { kind, len })
    }

    /// The nonce of a record: RFC 8446 section 5.3. Under TLS 1.2 with AES-GCM its last eight
    /// bytes are what [`Self::write_front`] sends, and what came replaces them.
    #[must_use]
    pub fn nonce(self, iv: &[u8; NONCE_BYTES], number: u64) -> [u8; NONCE_BYTES] {
        let mut nonce = *iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// The nonce of a record that came, whose front is `front`.
    #[must_use]
    pub fn nonce_of(
        self,
        iv: &[u8; NONCE_BYTES],
        number: u64,
        front: &[u8; Self::FRONT_BYTES_MAX],
    ) -> [u8; NONCE_BYTES] {
        let mut nonce = self.nonce(iv, number);
        if self.explicit {
            nonce[NONCE_BYTES - EXPLICIT_BYTES..].copy_from_slice(&front[HEADER_BYTES..]);
        }
        nonce
    }

    /// Writes what precedes the sealed text of a record with `content` bytes, and gives how many
    /// bytes that are.
    pub fn write_front(
        self,
        kind: u8,
        content_len: usize,
        nonce: &[u8; NONCE_BYTES],
        out: &mut [u8; Self::FRONT_BYTES_MAX],
    ) -> usize {
        let outer = match self.version {
            Version::Tls13 => content::APPLICATION_DATA,
            Version::Tls12 => kind,
        };
        let len = length(content_len + self.overhead() - HEADER_BYTES);
        out[..HEADER_BYTES].copy_from_slice(&[outer, 3, 3, len[0], len[1]]);
        out[HEADER_BYTES..].copy_from_slice(&nonce[NONCE_BYTES - EXPLICIT_BYTES..]);
        self.front()
    }

    /// The associated data of a record: its header in TLS 1.3 (RFC 8446 section 5.2), number, type,
    /// version and length of the text in TLS 1.2 (RFC 5246 section 6.2.3.3). Gives how many bytes
    /// of the result count.
    #[must_use]
    pub fn aad(self, number: u64, kind: u8, text_len: usize) -> ([u8; 13], usize) {
        let mut aad = [0; 13];
        match self.version {
            Version::Tls13 => {
                let len = length(text_len + TAG_BYTES);
                aad[..5].copy_from_slice(&[content::APPLICATION_DATA, 3, 3, len[0], len[1]]);
                (aad, 5)
            }
            Version::Tls12 => {
                aad[..8].copy_from_slice(&number.to_be_bytes());
                aad[8..11].copy_from_slice(&[kind, 3, 3]);
                aad[11..].copy_from_slice(&length(text_len));
                (aad, 13)
            }
        }
    }
}

/// A length as records carry it: callers are bounded by [`RECORD_BYTES_MAX`].
fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Content cut into records that follow each other: all but the last have the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes of content.
    pub content: u64,
    /// Bytes of content in each record but the last, at least one.
    pub record_content: u32,
    /// Bytes that a record is longer than its content.
    pub overhead: u32,
}

/// One record of a [`Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which record.
    pub index: u64,
    /// Bytes of it, on the wire, before the place.
    pub offset: u32,
}

impl Run {
    /// Records; one even where there is no content.
    #[must_use]
    pub const fn records(&self) -> u64 {
        let count = self.content.div_ceil(self.record_content as u64);
        if count == 0 { 1 } else { count }
    }

    /// Bytes on the wire.
    #[must_use]
    pub const fn wire_len(&self) -> u64 {
        self.content + self.records() * self.overhead as u64
    }

    /// Where a byte on the wire lies; the end lies at the start of the record behind the last.
    #[must_use]
    pub fn place(&self, at: u64) -> Place {
        let full = u64::from(self.record_content + self.overhead);
        if at >= self.wire_len() {
            return Place { index: self.records(), offset: 0 };
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than `full`, 32 bits wide")]
        Place { index: at / full, offset: (at % full) as u32 }
    }

    /// Where on the wire a record begins.
    #[must_use]
    pub fn start_of(&self, index: u64) -> u64 {
        (index * u64::from(self.record_content + self.overhead)).min(self.wire_len())
    }

    /// Bytes of content in a record.
    #[must_use]
    pub fn content_of(&self, index: u64) -> u32 {
        let before = index.saturating_mul(u64::from(self.record_content));
        let left = self.content.saturating_sub(before).min(u64::from(self.record_content));
        #[expect(clippy::cast_possible_truncation, reason = "at most `record_content`")]
        let left = left as u32;
        left
    }

    /// Content before a place: what precedes it on the wire, without framing of `front` bytes
    /// before each record's content.
    #[must_use]
    pub fn content_before(&self, place: Place, front: u32) -> u64 {
        let here = place.offset.saturating_sub(front).min(self.content_of(place.index));
        let before = place.index.saturating_mul(u64::from(self.record_content));
        before.min(self.content) + u64::from(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TLS13: Framing = Framing { version: Version::Tls13, explicit: false };
    const GCM12: Framing = Framing { version: Version::Tls12, explicit: true };

    #[test]
    fn an_alert_is_a_record_of_two_bytes() {
        assert_eq!(fatal_alert(80), [21, 3, 3, 0, 2, 2, 80]);
    }

    #[test]
    fn overheads_are_those_of_the_rfcs() {
        assert_eq!((TLS13.overhead(), GCM12.overhead()), (22, 29));
        let chacha = Framing { explicit: false, ..GCM12 };
        assert_eq!(chacha.overhead(), 21);
    }

    #[test]
    fn the_magic_pattern() {
        assert_eq!(TLS13.parse([23, 3, 3, 0, 17]), Some(RecordHeader { kind: 23, len: 17 }));
        assert!(TLS13.parse([23, 3, 3, 0x41, 0]).is_some(), "the longest");
        for bad in [[22, 3, 3, 0, 17], [23, 3, 1, 0, 17], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1]] {
            assert_eq!(TLS13.parse(bad), None);
        }
        assert!(GCM12.parse([21, 3, 3, 0, 24]).is_some());
        assert!(GCM12.parse([20, 3, 3, 0, 24]).is_none());
        assert!(GCM12.parse([21, 3, 3, 0, 23]).is_none());
    }

    #[test]
    fn places_in_a_run() {
        let run = Run { content: 250, record_content: 100, overhead: 22 };
        assert_eq!((run.records(), run.wire_len()), (3, 316));
        assert_eq!(run.place(0), Place { index: 0, offset: 0 });
        assert_eq!(run.place(121), Place { index: 0, offset: 121 });
        assert_eq!(run.place(122), Place { index: 1, offset: 0 });
        assert_eq!(run.place(315), Place { index: 2, offset: 71 });
        assert_eq!(run.place(316), Place { index: 3, offset: 0 });
        assert_eq!((run.start_of(2), run.start_of(3)), (244, 316));
        assert_eq!((run.content_of(1), run.content_of(2), run.content_of(3)), (100, 50, 0));
        let before = |at: u64| run.content_before(run.place(at), 5);
        assert_eq!((before(3), before(5), before(6), before(105)), (0, 0, 1, 100));
        assert_eq!((before(121), before(122), before(128), before(316)), (100, 100, 101, 250));
        let empty = Run { content: 0, ..run };
        assert_eq!((empty.records(), empty.wire_len()), (1, 22));
    }
}
