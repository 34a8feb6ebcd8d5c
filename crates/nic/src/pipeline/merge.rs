//! Rules by which packets of one flow that wait for the link become fewer.
//!
//! Used for packets that the device relays: if several of a flow arrive together, sending each one
//! alone costs a link of the kernel most of its work, and the receiver answers each one.
//! [`TcpHeaders::continues`] is the rule for payload, as in generic receive offload (Linux
//! `tcp_gro_receive`); [`TcpHeaders::supersedes`] is ACK filtering (RFC 3449 section 5.2.1).
//!
//! Invariant: payload, FIN, ECN marks, SACK blocks, duplicate acknowledgments and window updates
//! are kept. PSH may move to a later packet (RFC 9293 section 3.9.1.2).

use base::SeqNum;
use wire::TCP_BYTES;
use wire::tcp::TcpFlags;

/// Two no-operations and the header of a timestamps option (RFC 7323 appendix A).
const TIMESTAMPS_LAYOUT: [u8; 4] = [1, 1, 8, 10];
/// Length of that option with its padding.
const TIMESTAMPS_BYTES: usize = 12;
/// Flags that only the first or the last packet of a run bears ([`TcpFlags::for_packet_of_run`]).
/// All others are equal in packets that become one.
const FLAGS_OF_RUN_ENDS: TcpFlags = TcpFlags::FIN.with(TcpFlags::PSH).with(TcpFlags::CWR);

/// Headers of a TCP segment that waits for the link, for comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpHeaders<'a> {
    bytes: &'a [u8],
    l3: usize,
    l4: usize,
    /// The TCP header without options.
    tcp: &'a [u8; TCP_BYTES],
    options: &'a [u8],
}

impl<'a> TcpHeaders<'a> {
    /// Returns the headers at the front of `bytes`, with the IP header at `l3` and the TCP header
    /// at `l4`; `None` if they are not complete.
    pub(crate) fn new(bytes: &'a [u8], l3: usize, l4: usize) -> Option<Self> {
        let tcp: &[u8; TCP_BYTES] = bytes.get(l4..)?.first_chunk()?;
        let options = bytes.get(l4 + TCP_BYTES..l4 + usize::from(tcp[12] >> 4) * 4)?;
        Some(Self { bytes, l3, l4, tcp, options })
    }

    /// Returns the length of the headers in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.l4 + TCP_BYTES + self.options.len()
    }

    /// Returns whether the segment may be appended to a run with headers `run` and `len` bytes of
    /// payload.
    pub(crate) fn continues(&self, run: &Self, len: usize) -> bool {
        let (own, flags) = (self.flags(), run.flags());
        let expected = u32::try_from(len).map(|len| run.seq() + len);
        expected == Ok(self.seq())
            && own.without(FLAGS_OF_RUN_ENDS) == flags.without(FLAGS_OF_RUN_ENDS)
            && own.without(FLAGS_OF_RUN_ENDS.with(TcpFlags::ECE)) == TcpFlags::ACK
            && !own.has(TcpFlags::CWR)
            && !flags.has(TcpFlags::FIN)
            && self.tcp[8..12] == run.tcp[8..12]
            && self.tcp[14..16] == run.tcp[14..16]
            && self.is_of_flow(run)
            && (self.has_timestamps_only() || self.options == run.options)
    }

    /// Returns whether the segment makes `older` superfluous. Both must be without payload.
    pub(crate) fn supersedes(&self, older: &Self) -> bool {
        let flags = self.flags();
        flags == older.flags()
            && flags.without(TcpFlags::ECE) == TcpFlags::ACK
            && self.ack().gt(older.ack())
            && self.seq().ge(older.seq())
            && self.is_of_flow(older)
            && (self.has_timestamps_only() || self.options.is_empty())
    }

    /// Returns whether both segments are of one flow, and alike except for lengths, checksums,
    /// identification, TCP numbers, flags, window and the values of options.
    fn is_of_flow(&self, other: &Self) -> bool {
        let (a, b, l3, l4) = (self.bytes, other.bytes, self.l3, self.l4);
        let same = |from: usize, to: usize| a.get(from..to) == b.get(from..to);
        let ip = match a.get(l3).map(|version| version >> 4) {
            // Without length, identification and checksum.
            Some(4) => same(l3, l3 + 2) && same(l3 + 6, l3 + 10) && same(l3 + 12, l4),
            // Without length.
            _ => same(l3, l3 + 4) && same(l3 + 6, l4),
        };
        (l3, l4) == (other.l3, other.l4)
            && same(0, l3)
            && ip
            && same(l4, l4 + 4)
            && self.tcp[12] == other.tcp[12]
            && self.has_timestamps_only() == other.has_timestamps_only()
    }

    /// Returns whether timestamps are the only option. Packets with different ones may become one:
    /// a receiver that acknowledges several segments echoes the first one's (RFC 7323 section 4.3).
    fn has_timestamps_only(&self) -> bool {
        self.options.len() == TIMESTAMPS_BYTES && self.options.starts_with(&TIMESTAMPS_LAYOUT)
    }

    const fn flags(&self) -> TcpFlags {
        TcpFlags(self.tcp[13])
    }

    const fn seq(&self) -> SeqNum {
        let [_, _, _, _, a, b, c, d, ..] = *self.tcp;
        SeqNum(u32::from_be_bytes([a, b, c, d]))
    }

    const fn ack(&self) -> SeqNum {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.tcp;
        SeqNum(u32::from_be_bytes([a, b, c, d]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::frames::{TS_AT, tcp_header};
    use abi::PacketHeader;
    use alloc::vec::Vec;

    /// Offset of the TCP header of [`tcp_header`].
    fn l4(version: u8) -> usize {
        if version == 4 { 34 } else { 54 }
    }

    fn headers(header: &PacketHeader) -> TcpHeaders<'_> {
        TcpHeaders::new(header.as_slice(), header.l3(), header.l4()).unwrap()
    }

    /// Returns the headers of a segment with the acknowledgment number 9 + `ack`.
    fn segment(version: u8, seq: u32, ack: u8, flags: TcpFlags) -> PacketHeader {
        let mut header = tcp_header(version, seq, flags);
        header.as_mut_slice()[l4(version) + 11] += ack;
        header
    }

    /// Lengths, identifications, checksums, timestamps and an urgent pointer without its flag may
    /// differ between segments that become one; any other difference keeps them apart.
    #[test]
    fn segments_that_differ_otherwise_are_kept_apart() {
        for version in [4, 6] {
            let (l4, run) = (l4(version), segment(version, 100, 0, TcpFlags::ACK));
            let data = segment(version, 150, 0, TcpFlags::ACK.with(TcpFlags::FIN));
            let ack = segment(version, 100, 1, TcpFlags::ACK);
            let len = headers(&run).len();
            assert_eq!(len, run.as_slice().len());
            let ip: &[usize] = if version == 4 { &[16, 17, 18, 19, 24, 25] } else { &[18, 19] };
            let tcp = (l4 + 16..l4 + 20).chain(len - 8..len);
            let free: Vec<usize> = ip.iter().copied().chain(tcp).collect();
            // A changed data offset makes the headers incomplete.
            for at in (0..len).filter(|at| *at != l4 + 12) {
                let changed = |header: &PacketHeader| {
                    let mut header = header.clone();
                    header.as_mut_slice()[at] ^= 0x80;
                    header
                };
                let continues = headers(&changed(&data)).continues(&headers(&run), 50);
                assert_eq!(continues, free.contains(&at), "IPv{version}, byte {at}");
                if !(l4 + 4..l4 + 16).contains(&at) {
                    let supersedes = headers(&changed(&ack)).supersedes(&headers(&run));
                    assert_eq!(supersedes, free.contains(&at), "IPv{version}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_run_ends_with_a_fin_and_begins_with_a_cwr() {
        let flags = |flags: TcpFlags| segment(4, 100, 0, TcpFlags::ACK.with(flags));
        let continues = |run: TcpFlags, next: TcpFlags| {
            let next = segment(4, 150, 0, TcpFlags::ACK.with(next));
            headers(&next).continues(&headers(&flags(run)), 50)
        };
        let (none, ece) = (TcpFlags::NONE, TcpFlags::ECE);
        assert!(continues(none, none) && continues(ece, ece));
        assert!(continues(TcpFlags::PSH, none) && continues(none, TcpFlags::PSH));
        assert!(continues(TcpFlags::CWR, none) && !continues(none, TcpFlags::CWR));
        assert!(continues(none, TcpFlags::FIN) && !continues(TcpFlags::FIN, none));
        assert!(!continues(none, ece) && !continues(ece, none));
        for flag in [TcpFlags::SYN, TcpFlags::RST, TcpFlags::URG] {
            assert!(!continues(flag, flag), "{flag:?}");
        }
    }

    /// Only a later acknowledgment supersedes another one, and only if neither says more.
    #[test]
    fn pure_acknowledgments_are_superseded() {
        let supersedes = |(ack, flags): (u8, TcpFlags), (older, older_flags): (u8, TcpFlags)| {
            let new = segment(6, 100, ack, flags);
            let older = segment(6, 100, older, older_flags);
            headers(&new).supersedes(&headers(&older))
        };
        let ack = TcpFlags::ACK;
        let ece = ack.with(TcpFlags::ECE);
        assert!(supersedes((2, ack), (1, ack)) && supersedes((2, ece), (1, ece)));
        assert!(!supersedes((1, ack), (1, ack)), "a duplicate acknowledgment");
        assert!(!supersedes((1, ack), (2, ack)), "one that was overtaken");
        assert!(!supersedes((2, ack), (1, ece)) && !supersedes((2, ece), (1, ack)));
        for flag in [TcpFlags::FIN, TcpFlags::PSH, TcpFlags::CWR, TcpFlags::URG, TcpFlags::RST] {
            let with = ack.with(flag);
            assert!(!supersedes((2, with), (1, with)), "{flag:?}");
        }
        let older = segment(4, 101, 1, ack);
        let new = segment(4, 100, 2, ack);
        assert!(!headers(&new).supersedes(&headers(&older)), "an older number is refused");
        // SACK in place of timestamps.
        let sack = |ack: u8| {
            let mut header = segment(4, 100, ack, TcpFlags::ACK);
            header.as_mut_slice()[usize::from(TS_AT) - 2] = 5;
            header
        };
        assert!(!headers(&sack(2)).supersedes(&headers(&sack(1))));
    }
}
