//! TCP headers (RFC 9293 section 3.1) with the options of RFC 7323, RFC 2018 and RFC 7413.

use base::SeqNum;

use crate::TCP_BYTES;

/// The control bits of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// Returns whether the segment opens a connection: a SYN without ACK, RST and FIN.
    #[must_use]
    pub const fn opens_connection(self) -> bool {
        self.has(Self::SYN) && !self.any(Self::ACK.with(Self::RST).with(Self::FIN))
    }

    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push function.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);
    /// No flags.
    pub const NONE: Self = Self(0);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags of one packet of a run from those of the run. FIN and PSH belong to the
    /// last packet; CWR, which answers an ECE once, to the first (RFC 3168 section 6.1.2).
    #[must_use]
    pub const fn for_packet_of_run(self, first: bool, last: bool) -> Self {
        let later = if first { Self::NONE } else { Self::CWR };
        let before = if last { Self::NONE } else { Self::FIN.with(Self::PSH) };
        self.without(later.with(before))
    }

    /// Returns this set without the flags of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any flag of `other` is set.
    #[must_use]
    pub const fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl core::fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NAMES: [&str; 8] = ["F", "S", "R", "P", ".", "U", "E", "W"];
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpTimestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the peer's clock, echoed.
    pub echo: u32,
}

/// A block of the SACK option: bytes `start..end` have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// First sequence number.
    pub start: SeqNum,
    /// Sequence number after the last byte.
    pub end: SeqNum,
}

/// Maximum SACK blocks of a segment without other options (RFC 2018 section 3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// Options of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale shift, as received.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<TcpTimestamps>,
    /// Selective acknowledgments.
    pub sack_blocks: SackBlocks,
    /// A TCP Fast Open option was received (RFC 7413 section 4.1.1), of the assigned or the
    /// experimental kind. It is never written.
    pub fast_open: bool,
}

/// Up to [`SACK_BLOCKS_MAX`] SACK blocks, inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; SACK_BLOCKS_MAX],
    len: u8,
}

impl TcpOptions {
    /// Returns the SACK blocks.
    #[must_use]
    pub fn sack(&self) -> &[SackBlock] {
        &self.sack_blocks.blocks[..usize::from(self.sack_blocks.len)]
    }

    /// Adds a SACK block. Returns false if there is no room.
    pub const fn push_sack(&mut self, block: SackBlock) -> bool {
        let SackBlocks { blocks, len } = &mut self.sack_blocks;
        if *len as usize == SACK_BLOCKS_MAX {
            return false;
        }
        blocks[*len as usize] = block;
        *len += 1;
        true
    }

    /// Returns the length that [`Self::emit`] writes, a multiple of four.
    #[must_use]
    pub fn len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        // Linux's order: SACK-permitted takes the place of the padding before the timestamps on a
        // SYN.
        let timestamps = match (self.timestamps.is_some(), self.sack_permitted) {
            (true, _) => 12,
            (false, true) => 4,
            (false, false) => 0,
        };
        let blocks = usize::from(self.sack_blocks.len);
        let sack = if blocks > 0 { 4 + 8 * blocks } else { 0 };
        mss + scale + timestamps + sack
    }

    /// Returns whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options in Linux's order into `out` of [`Self::len`] bytes. Returns the offset of
    /// TSval in `out` if there are timestamps.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        assert_eq!(out.len(), self.len(), "options fill their room exactly");
        let mut writer = TcpOptionWriter { out, at: 0 };
        if let Some(mss) = self.mss {
            writer.put(&[2, 4]);
            writer.put(&mss.to_be_bytes());
        }
        let mut tsval_at = None;
        if let Some(ts) = self.timestamps {
            writer.put(if self.sack_permitted { &[4, 2] } else { &[1, 1] });
            writer.put(&[8, 10]);
            tsval_at = Some(writer.at);
            writer.put(&ts.value.to_be_bytes());
            writer.put(&ts.echo.to_be_bytes());
        } else if self.sack_permitted {
            writer.put(&[1, 1, 4, 2]);
        }
        if let Some(shift) = self.window_scale {
            writer.put(&[1, 3, 3, shift]);
        }
        let blocks = self.sack_blocks.len;
        if blocks > 0 {
            writer.put(&[1, 1, 5, 2 + 8 * blocks]);
            for block in self.sack() {
                writer.put(&block.start.0.to_be_bytes());
                writer.put(&block.end.0.to_be_bytes());
            }
        }
        tsval_at
    }

    /// Parses options. Unknown ones are skipped; a wrong length is an error.
    fn parse(mut bytes: &[u8]) -> Result<Self, TcpHeaderError> {
        // Fast path: the layout of data segments of an established connection (RFC 7323 appendix
        // A).
        if let [1, 1, 8, 10, a, b, c, d, e, f, g, h] = *bytes {
            let timestamps = Some(TcpTimestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: u32::from_be_bytes([e, f, g, h]),
            });
            return Ok(Self { timestamps, ..Self::default() });
        }
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            match kind {
                0 => break,
                1 => bytes = rest,
                _ => {
                    let len = usize::from(*rest.first().ok_or(TcpHeaderError::BadOption)?);
                    let option = bytes.get(2..len).ok_or(TcpHeaderError::BadOption)?;
                    options.apply_option(*kind, option)?;
                    bytes = &bytes[len..];
                }
            }
        }
        Ok(options)
    }

    fn apply_option(&mut self, kind: u8, body: &[u8]) -> Result<(), TcpHeaderError> {
        match (kind, body) {
            (2, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (3, &[shift]) => self.window_scale = Some(shift),
            (4, []) => self.sack_permitted = true,
            (5, blocks) if !blocks.is_empty() && blocks.len() % 8 == 0 => {
                for block in blocks.chunks_exact(8) {
                    let [a, b, c, d, e, f, g, h] = *block else { continue };
                    self.push_sack(SackBlock {
                        start: SeqNum(u32::from_be_bytes([a, b, c, d])),
                        end: SeqNum(u32::from_be_bytes([e, f, g, h])),
                    });
                }
            }
            (8, &[a, b, c, d, e, f, g, h]) => {
                self.timestamps = Some(TcpTimestamps {
                    value: u32::from_be_bytes([a, b, c, d]),
                    echo: u32::from_be_bytes([e, f, g, h]),
                });
            }
            // RFC 7413 appendix A: the experimental kind 254 with this magic number preceded kind
            // 34.
            (34, _) | (254, [0xf9, 0x89, ..]) => self.fast_open = true,
            (2..=5 | 8, _) => return Err(TcpHeaderError::BadOption),
            _ => {}
        }
        Ok(())
    }
}

struct TcpOptionWriter<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl TcpOptionWriter<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Fields of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpHeader {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: SeqNum,
    /// Acknowledgment number; valid only with [`TcpFlags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field, unscaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
}

/// Reason why a TCP header is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TcpHeaderError {
    /// The packet is shorter than its header, or the data offset points into the fixed header or
    /// after the packet.
    BadLength,
    /// An option's length is wrong.
    BadOption,
    /// A port is zero.
    BadPort,
}

impl TcpHeader {
    /// Returns the length of the header with its options.
    #[must_use]
    pub fn header_len(&self) -> usize {
        TCP_BYTES + self.options.len()
    }

    /// Parses the header of the TCP packet `bytes`. Returns it with its length.
    ///
    /// # Errors
    /// [`TcpHeaderError`] if the header is malformed. The checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), TcpHeaderError> {
        let header = bytes.get(..TCP_BYTES).ok_or(TcpHeaderError::BadLength)?;
        let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let header_len = usize::from(header[12] >> 4) * 4;
        let options = bytes.get(TCP_BYTES..header_len).ok_or(TcpHeaderError::BadLength)?;
        let segment = Self {
            source: u16_at(0),
            destination: u16_at(2),
            seq: SeqNum(u32_at(4)),
            ack: SeqNum(u32_at(8)),
            flags: TcpFlags(header[13]),
            window: u16_at(14),
            options: TcpOptions::parse(options)?,
        };
        if segment.source == 0 || segment.destination == 0 {
            return Err(TcpHeaderError::BadPort);
        }
        Ok((segment, header_len))
    }

    /// Writes the header, with checksum and urgent pointer zero, into `out` of [`Self::header_len`]
    /// bytes. Returns the offset of TSval in `out` if there are timestamps.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let (header, options) = out.split_at_mut(TCP_BYTES);
        header[0..2].copy_from_slice(&self.source.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination.to_be_bytes());
        header[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        header[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most 60 / 4")]
        let words = ((TCP_BYTES + options.len()) / 4) as u8;
        header[12] = words << 4;
        header[13] = self.flags.0;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..20].fill(0);
        self.options.emit(options).map(|at| at + TCP_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn syn() -> TcpHeader {
        TcpHeader {
            source: 40000,
            destination: 80,
            seq: SeqNum(7),
            flags: TcpFlags::SYN,
            window: 64240,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some(TcpTimestamps { value: 1, echo: 0 }),
                ..TcpOptions::default()
            },
            ..TcpHeader::default()
        }
    }

    #[test]
    fn syn_is_laid_out_as_linux_does() {
        let mut bytes = [0; 40];
        assert_eq!(syn().emit(&mut bytes), Some(28));
        assert_eq!(bytes[20..], [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    }

    #[test]
    fn bad_options_are_errors() {
        let with = |options: &[u8]| {
            let mut bytes = vec![0; 20];
            bytes[1] = 1;
            bytes[3] = 1;
            bytes.extend_from_slice(options);
            bytes[12] = u8::try_from(bytes.len() / 4).unwrap() << 4;
            TcpHeader::parse(&bytes).map(|_| ())
        };
        assert_eq!(with(&[2, 4, 5, 180]), Ok(()));
        assert_eq!(with(&[30, 4, 0, 0]), Ok(()), "an unknown option is skipped");
        assert_eq!(with(&[2, 3, 5, 0]), Err(TcpHeaderError::BadOption));
        assert_eq!(
            with(&[2, 0, 5, 180]),
            Err(TcpHeaderError::BadOption),
            "a length of zero never ends"
        );
        assert_eq!(with(&[1, 1, 1, 8]), Err(TcpHeaderError::BadOption));
        assert_eq!(with(&[5, 40, 0, 0]), Err(TcpHeaderError::BadOption));
        assert_eq!(with(&[34, 3, 0, 0]), Ok(()), "Fast Open is seen and not read");
        assert_eq!(TcpHeader::parse(&[0; 19]), Err(TcpHeaderError::BadLength));
        assert_eq!(TcpHeader::parse(&[0; 20]), Err(TcpHeaderError::BadLength));
    }

    prop_compose! {
        fn any_segment()(
            mss: Option<u16>,
            window_scale: Option<u8>,
            sack_permitted: bool,
            ts: Option<(u32, u32)>,
            blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..3),
            flags: u8,
            seq: u32,
        ) -> TcpHeader {
            let timestamps = ts.map(|(value, echo)| TcpTimestamps { value, echo });
            let mut options = TcpOptions {
                mss, window_scale, sack_permitted, timestamps, ..TcpOptions::default()
            };
            for (start, end) in blocks {
                options.push_sack(SackBlock { start: SeqNum(start), end: SeqNum(end) });
            }
            TcpHeader { seq: SeqNum(seq), flags: TcpFlags(flags), options, ..syn() }
        }
    }

    proptest! {
        #[test]
        fn total_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((_, len)) = TcpHeader::parse(&bytes) {
                prop_assert!(len <= bytes.len());
            }
        }

        #[test]
        fn what_is_emitted_is_parsed(segment in any_segment()) {
            prop_assume!(segment.options.len() <= 40);
            let mut bytes = vec![0; segment.header_len()];
            segment.emit(&mut bytes);
            prop_assert_eq!(TcpHeader::parse(&bytes), Ok((segment, bytes.len())));
        }
    }
}
