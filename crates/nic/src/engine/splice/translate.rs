//! Translation of one side's headers to the other's (AccelTCP section 4.3, figures 7 and 8).
//!
//! Rewrites addresses, ports, numbers, timestamps, SACK blocks and the window to what the other
//! peer expects on its connection with this host. The checksum is updated incrementally: the
//! difference of addresses and ports is computed once, that of other fields per packet, which stays
//! exact if a number wraps. The payload is therefore not read, and a packet that is damaged inside
//! this device still arrives with a wrong checksum.
//!
//! [`super::pair`] decides whether a packet may pass.

use core::net::IpAddr;
use core::ops::Range;

use abi::PacketHeader;
use abi::splice::SpliceSide;
use base::SeqNum;
use wire::checksum::ChecksumDelta;
use wire::emit::{EthernetAddrs, IpHeader, ethernet_ip};
use wire::frame::protocol;
use wire::tcp::TcpFlags;
use wire::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, Tuple};

use super::segment::SplicedSegment;
use crate::pipeline::rx::TransportPosition;

/// Size of the Ethernet header and the longer of the two IP headers.
const PREFIX_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES;
/// Size of the timestamps option with its padding (RFC 7323 appendix A).
const TIMESTAMP_BYTES: u16 = 12;
/// Distance by which a timestamp echo or SACK block may be behind the latest one and still be
/// distinguished from one before the splice.
const ECHO_REACH: u32 = 1 << 29;
/// Offset of the checksum in a TCP header.
pub(super) const CHECKSUM_AT: usize = 16;
/// Option kinds: end of the list, and no operation (RFC 9293 section 3.2).
const END: u8 = 0;
const NOP: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// Header translation of one direction.
#[derive(Debug)]
pub(super) struct HeaderTranslation {
    /// Offsets added to sequence numbers and to acknowledgment numbers.
    seq: u32,
    ack: u32,
    clocks: Option<TimestampOffsets>,
    /// Window scale of the sender, and of the windows that the receiver is offered.
    peer_scale: u8,
    own_scale: u8,
    /// True if the receiver negotiated SACK.
    sack: bool,
    /// True if both sides negotiated ECN.
    ecn: bool,
    /// SACK blocks that begin before this number are not relayed. Initially our next number at the
    /// splice: the receiver did not send the bytes before it.
    sack_floor: SeqNum,
    /// Maximum bytes of options and payload per segment to the receiver.
    segment_room: u16,
    /// Source and destination port of outgoing packets.
    ports: [u8; 4],
    /// Ethernet and IP header of outgoing packets.
    prefix: [u8; PREFIX_BYTES],
    l4: usize,
    /// Checksum differences caused by addresses and ports, for TCP and for IPv4.
    tcp_sum: ChecksumDelta,
    ip_sum: ChecksumDelta,
}

/// Offsets between the timestamp clocks of both sides (RFC 7323).
#[derive(Debug)]
struct TimestampOffsets {
    /// Added to TSval.
    value: u32,
    /// Added to TSecr.
    echo: u32,
    /// Echoes before this value are clamped to it. Initially our clock at the splice.
    echo_floor: u32,
    /// The latest TSval that was sent to the sender of this direction: it cannot echo a later one.
    echo_latest: u32,
}

/// Properties of headers that were rewritten. Their TCP checksum is still the received one.
#[derive(Debug)]
pub(super) struct RewrittenHeaders {
    /// The window field.
    pub(super) window: u16,
    /// TSval as received.
    pub(super) tsval: Option<u32>,
    /// True if a SACK option that the receiver cannot interpret was removed.
    pub(super) sack_left_out: bool,
    /// Difference of the TCP checksum.
    difference: ChecksumDelta,
}

/// Reason for which a packet cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untranslatable {
    Malformed,
    HopLimit,
}

impl HeaderTranslation {
    /// Creates the translation from `from`'s peer to `to`'s, for a link with MTU `mtu` and a device
    /// with address `mac`.
    pub(super) fn new(from: &SpliceSide, to: &SpliceSide, mac: [u8; 6], mtu: u16) -> Self {
        let clocks = from.timestamps.zip(to.timestamps).map(|(from, to)| TimestampOffsets {
            value: to.tsval.wrapping_sub(from.ts_recent),
            echo: to.ts_recent.wrapping_sub(from.tsval),
            echo_floor: from.tsval,
            echo_latest: from.tsval,
        });
        let ip = IpHeader {
            source: to.tuple.local.addr,
            destination: to.tuple.remote.addr,
            protocol: protocol::TCP,
            ecn: 0,
            hop_limit: 0,
        };
        let mut prefix = [0; PREFIX_BYTES];
        ethernet_ip(
            &EthernetAddrs { source: mac, destination: to.next_hop_mac },
            &ip,
            0,
            &mut prefix,
        );
        let options = if to.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        let mut translation = Self {
            seq: to.snd_nxt.0.wrapping_sub(from.rcv_nxt.0),
            ack: to.rcv_nxt.0.wrapping_sub(from.snd_nxt.0),
            clocks,
            peer_scale: from.peer_scale,
            own_scale: to.own_scale,
            sack: to.sack,
            ecn: from.ecn && to.ecn,
            sack_floor: from.snd_nxt,
            segment_room: to.mss.saturating_add(options),
            ports: port_field(&to.tuple),
            prefix,
            l4: ETHERNET_BYTES + ip.len(),
            tcp_sum: tcp_difference(&from.tuple, &to.tuple),
            ip_sum: address_difference(&from.tuple, &to.tuple).folded(),
        };
        translation.limit_mtu(mtu);
        translation
    }

    /// Limits outgoing packets to a link's MTU, in bytes above Ethernet.
    pub(super) fn limit_mtu(&mut self, mtu: u16) {
        let ip = self.l4 - ETHERNET_BYTES;
        let fits = usize::from(mtu).saturating_sub(ip + TCP_BYTES);
        self.segment_room = self.segment_room.min(u16::try_from(fits).unwrap_or(u16::MAX));
    }

    /// Translates a sequence number of the sender.
    pub(super) fn seq(&self, seq: SeqNum) -> SeqNum {
        seq + self.seq
    }

    /// Translates an acknowledgment number of the sender.
    pub(super) fn ack(&self, ack: SeqNum) -> SeqNum {
        ack + self.ack
    }

    /// Translates a TSval of the sender; `None` without timestamps.
    pub(super) fn tsval(&self, value: u32) -> Option<u32> {
        self.clocks.as_ref().map(|clocks| value.wrapping_add(clocks.value))
    }

    /// Records a TSval that was sent to the sender of this direction, which may echo it from now
    /// on.
    pub(super) fn note_tsval_sent(&mut self, value: u32) {
        if let Some(clocks) = &mut self.clocks {
            clocks.note_tsval_sent(value);
        }
    }

    /// Returns the Ethernet and IP header of outgoing packets.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix[..self.l4]
    }

    /// Returns the maximum payload of a segment to the receiver with the options of `segment`.
    pub(super) fn payload_max(&self, segment: &SplicedSegment) -> u16 {
        let options = segment.header.len().saturating_sub(TCP_BYTES);
        self.segment_room.saturating_sub(u16::try_from(options).unwrap_or(0)).max(1)
    }

    /// Returns whether outgoing packets have the same layout as the received one, so that its
    /// headers can be rewritten in place: neither the IP version changes, nor are a VLAN tag, IP
    /// options or extension headers removed.
    pub(super) fn keeps_layout(&self, frame: &[u8], at: &TransportPosition) -> bool {
        at.l3 == ETHERNET_BYTES && self.keeps_ip_header(frame, at)
    }

    fn keeps_ip_header(&self, frame: &[u8], at: &TransportPosition) -> bool {
        at.l4 - at.l3 == self.l4 - ETHERNET_BYTES
            && frame.get(at.l3).is_some_and(|byte| byte >> 4 == self.prefix[ETHERNET_BYTES] >> 4)
    }

    /// Copies the headers of a segment to a header with the layout of outgoing packets, for
    /// [`Self::rewrite`]; returns whether the IP header is the received one. Otherwise it is a new
    /// one, whose lengths and identification must be set.
    ///
    /// # Errors
    /// [`Untranslatable::Malformed`].
    pub(super) fn copy_headers(
        &self,
        frame: &[u8],
        at: &TransportPosition,
        segment: &SplicedSegment,
    ) -> Result<(PacketHeader, bool), Untranslatable> {
        let tcp = frame.get(segment.header.clone()).ok_or(Untranslatable::Malformed)?;
        let mut header = PacketHeader::zeroed(self.l4 + tcp.len(), ETHERNET_BYTES, self.l4)
            .map_err(|_| Untranslatable::Malformed)?;
        let (prefix, out) = header.as_mut_slice().split_at_mut(self.l4);
        out.copy_from_slice(tcp);
        prefix.copy_from_slice(&self.prefix[..self.l4]);
        let kept = self.keeps_ip_header(frame, at);
        if kept {
            prefix[ETHERNET_BYTES..].copy_from_slice(&frame[at.l3..at.l4]);
        }
        Ok((header, kept))
    }

    /// Rewrites the headers of a segment, which begin `headers` and have the layout of outgoing
    /// packets, except for lengths and the TCP checksum. `kept_ip`: the IP header is the received
    /// one, whose checksum is updated. `sent` is the number after the last byte that was relayed
    /// from the receiver.
    ///
    /// # Errors
    /// The reason for which the segment cannot be relayed. Some headers may have been rewritten.
    #[inline]
    pub(super) fn rewrite(
        &mut self,
        headers: &mut [u8],
        kept_ip: bool,
        segment: &SplicedSegment,
        sent: SeqNum,
    ) -> Result<RewrittenHeaders, Untranslatable> {
        // RFC 791 section 3.2, RFC 8200 section 3: each forwarder decrements it.
        let hop_limit = match segment.hop_limit {
            0 | 1 => return Err(Untranslatable::HopLimit),
            limit => limit - 1,
        };
        let class = if self.ecn { segment.class } else { segment.class & !3 };
        let len = self.l4 + segment.header.len();
        let headers = headers.get_mut(..len).ok_or(Untranslatable::Malformed)?;
        let (prefix, tcp) = headers.split_at_mut(self.l4);
        self.write_ip(prefix, kept_ip, class, hop_limit);
        let (fixed, options) = tcp.split_first_chunk_mut().ok_or(Untranslatable::Malformed)?;
        let mut difference = self.tcp_sum;
        let window = self.write_fixed(segment, fixed, &mut difference);
        // Numbers wrap, so the floor follows at a distance.
        let ahead = segment.ack.distance(self.sack_floor).max(0).unsigned_abs();
        self.sack_floor += ahead.saturating_sub(ECHO_REACH);
        let (tsval, sack_left_out) =
            self.write_options(options, sent, &mut difference).ok_or(Untranslatable::Malformed)?;
        Ok(RewrittenHeaders { window, tsval, sack_left_out, difference })
    }

    /// Writes the Ethernet header, the addresses, and the fields that each forwarder sets. `kept`:
    /// the other fields are the received ones.
    fn write_ip(&self, prefix: &mut [u8], kept: bool, class: u8, hop_limit: u8) {
        let (ethernet, ip) = prefix.split_at_mut(ETHERNET_BYTES);
        ethernet.copy_from_slice(&self.prefix[..ETHERNET_BYTES]);
        let own = &self.prefix[ETHERNET_BYTES..self.l4];
        if own.len() == IPV4_BYTES {
            if kept {
                let mut sum = self.ip_sum;
                sum.u16(u16::from(ip[1]), u16::from(class));
                sum.u16(u16::from(ip[8]) << 8, u16::from(hop_limit) << 8);
                let checksum = sum.apply(u16::from_be_bytes([ip[10], ip[11]]));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                ip[12..].copy_from_slice(&own[12..]);
            }
            (ip[1], ip[8]) = (class, hop_limit);
        } else {
            // The flow label, the length and the next header stay.
            ip[8..].copy_from_slice(&own[8..]);
            ip[0] = 0x60 | class >> 4;
            ip[1] = ip[1] & 0x0f | class << 4;
            ip[7] = hop_limit;
        }
    }

    /// Writes ports, numbers, flags and the window. Returns the window field.
    fn write_fixed(
        &self,
        segment: &SplicedSegment,
        out: &mut [u8; TCP_BYTES],
        difference: &mut ChecksumDelta,
    ) -> u16 {
        out[0..4].copy_from_slice(&self.ports);
        let seq = self.seq(segment.seq);
        difference.u32(segment.seq.0, seq.0, false);
        out[4..8].copy_from_slice(&seq.0.to_be_bytes());
        if segment.flags.has(TcpFlags::ACK) {
            let ack = self.ack(segment.ack);
            difference.u32(segment.ack.0, ack.0, false);
            out[8..12].copy_from_slice(&ack.0.to_be_bytes());
        }
        let mut flags = segment.flags;
        if !self.ecn {
            flags = flags.without(TcpFlags::ECE.with(TcpFlags::CWR));
        }
        difference.u16(u16::from(segment.flags.0), u16::from(flags.0));
        out[13] = flags.0;
        // RFC 7323 section 2.3: both scales are at most 14.
        let bytes = u32::from(segment.window) << self.peer_scale;
        let window = u16::try_from(bytes >> self.own_scale).unwrap_or(u16::MAX);
        difference.u16(segment.window, window);
        out[14..16].copy_from_slice(&window.to_be_bytes());
        window
    }

    /// Translates timestamps and SACK blocks; other options pass unchanged. Returns the received
    /// TSval and whether a SACK option was removed, or `None` if the option list is malformed.
    fn write_options(
        &self,
        options: &mut [u8],
        sent: SeqNum,
        difference: &mut ChecksumDelta,
    ) -> Option<(Option<u32>, bool)> {
        // RFC 7323 appendix A: the layout of nearly all segments.
        if let [NOP, NOP, TIMESTAMPS, 10, ..] = options {
            if options.len() == usize::from(TIMESTAMP_BYTES) {
                let tsval = self.write_timestamps(options, 4, difference)?;
                return Some((Some(tsval), false));
            }
        }
        let (mut at, mut tsval, mut left_out) = (0, None, false);
        while let Some(&kind) = options.get(at) {
            match kind {
                END => break,
                NOP => at += 1,
                _ => {
                    let len = usize::from(*options.get(at + 1)?);
                    let rest = options.get(at..at + len).filter(|_| len >= 2)?.len();
                    match kind {
                        TIMESTAMPS if len == 10 => {
                            tsval = Some(self.write_timestamps(options, at + 2, difference)?);
                        }
                        SACK => {
                            let blocks = at + 2..at + rest;
                            if !self.sack || !self.write_sack(options, blocks, sent, difference) {
                                left_out = true;
                                overwrite_with_nops(options, at, rest, difference);
                            }
                        }
                        _ => {}
                    }
                    at += len;
                }
            }
        }
        Some((tsval, left_out))
    }

    /// Translates TSval and TSecr at `at`. Returns the received TSval.
    fn write_timestamps(
        &self,
        options: &mut [u8],
        at: usize,
        difference: &mut ChecksumDelta,
    ) -> Option<u32> {
        let value = read(options, at)?;
        let echo = read(options, at + 4)?;
        if let Some(clocks) = &self.clocks {
            write(options, at, value.wrapping_add(clocks.value), difference);
            write(options, at + 4, clocks.echo(echo), difference);
        }
        Some(value)
    }

    /// Translates SACK blocks. Like `ack`, they name bytes of the receiver (RFC 2018). Returns
    /// whether the option may pass. It may not if it is malformed, or if a block is empty, names
    /// bytes from before the splice (it reports a duplicate of the host's own bytes, RFC 2883), or
    /// names bytes after `sent`, which the receiver never sent.
    fn write_sack(
        &self,
        options: &mut [u8],
        at: Range<usize>,
        sent: SeqNum,
        difference: &mut ChecksumDelta,
    ) -> bool {
        let edge = |options: &[u8], at| read(options, at).map(SeqNum).unwrap_or_default();
        let blocks = || at.clone().step_by(8).take(at.len() / 8);
        let fits = |at| {
            let (start, end) = (edge(options, at), edge(options, at + 4));
            !start.lt(self.sack_floor) && start.lt(end) && !self.ack(end).gt(sent)
        };
        if at.len() % 8 != 0 || !blocks().all(fits) {
            return false;
        }
        for at in blocks().flat_map(|at| [at, at + 4]) {
            write(options, at, self.ack(edge(options, at)).0, difference);
        }
        true
    }
}

impl TimestampOffsets {
    /// Records a TSval that was sent to the sender. Clocks wrap, so the floor follows the latest
    /// value at a distance.
    fn note_tsval_sent(&mut self, value: u32) {
        let ahead = value.wrapping_sub(self.echo_latest);
        if ahead <= i32::MAX.unsigned_abs() {
            self.echo_latest = value;
            let reach = value.wrapping_sub(self.echo_floor);
            self.echo_floor = self.echo_floor.wrapping_add(reach.saturating_sub(ECHO_REACH));
        }
    }

    /// Translates an echo of our clock into an echo of the receiver's. An echo from before the
    /// splice has no equivalent; it is set to the moment of the splice, so that the receiver
    /// measures a time that is too short rather than an arbitrary one. An echo of a TSval that was
    /// never sent is set to the latest that was.
    fn echo(&self, echo: u32) -> u32 {
        let ahead = echo.wrapping_sub(self.echo_floor);
        let latest = self.echo_latest.wrapping_sub(self.echo_floor);
        let passes = if ahead > i32::MAX.unsigned_abs() { 0 } else { ahead.min(latest) };
        self.echo_floor.wrapping_add(passes).wrapping_add(self.echo)
    }
}

impl RewrittenHeaders {
    /// Updates the checksum of the TCP header at `l4`, which was correct for the received segment.
    pub(super) fn update_checksum(&self, headers: &mut [u8], l4: usize) {
        if let Some(field) = headers.get_mut(l4 + CHECKSUM_AT..).and_then(<[u8]>::first_chunk_mut) {
            *field = self.difference.apply(u16::from_be_bytes(*field)).to_be_bytes();
        }
    }
}

/// Returns the ports of packets that this host sends on a connection.
fn port_field(tuple: &Tuple) -> [u8; 4] {
    let ([s0, s1], [d0, d1]) = (tuple.local.port.to_be_bytes(), tuple.remote.port.to_be_bytes());
    [s0, s1, d0, d1]
}

fn read(options: &[u8], at: usize) -> Option<u32> {
    options.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

/// Writes four bytes and updates `difference`. Options begin at an even offset of the segment.
fn write(options: &mut [u8], at: usize, new: u32, difference: &mut ChecksumDelta) {
    if let Some(field) = options.get_mut(at..).and_then(|f| f.first_chunk_mut::<4>()) {
        difference.u32(u32::from_be_bytes(*field), new, at % 2 == 1);
        *field = new.to_be_bytes();
    }
}

/// Overwrites an option that the receiver did not negotiate with no-operations.
fn overwrite_with_nops(options: &mut [u8], at: usize, len: usize, difference: &mut ChecksumDelta) {
    for (at, byte) in options.iter_mut().enumerate().skip(at).take(len) {
        let shift = if at % 2 == 0 { 8 } else { 0 };
        difference.u16(u16::from(*byte) << shift, u16::from(NOP) << shift);
        *byte = NOP;
    }
}

/// Checksum difference between the addresses of two connections. On `from` the peer is the source;
/// on `to` this host is.
fn address_difference(from: &Tuple, to: &Tuple) -> ChecksumDelta {
    let mut difference = ChecksumDelta::new();
    for (old, new) in [(from.remote.addr, to.local.addr), (from.local.addr, to.remote.addr)] {
        words(old, |word| difference.u16(word, 0));
        words(new, |word| difference.u16(0, word));
    }
    difference
}

/// Checksum difference including the ports (figure 8, line 3). Protocol and length are equal in
/// both pseudo-headers for all IP versions (RFC 8200 section 8.1).
fn tcp_difference(from: &Tuple, to: &Tuple) -> ChecksumDelta {
    let mut difference = address_difference(from, to);
    difference.u16(from.remote.port, to.local.port);
    difference.u16(from.local.port, to.remote.port);
    difference.folded()
}

fn words(addr: IpAddr, mut f: impl FnMut(u16)) {
    let mut each = |bytes: &[u8]| {
        for pair in bytes.chunks_exact(2) {
            f(u16::from_be_bytes([pair[0], pair[1]]));
        }
    };
    match addr {
        IpAddr::V4(v4) => each(&v4.octets()),
        IpAddr::V6(v6) => each(&v6.octets()),
    }
}
