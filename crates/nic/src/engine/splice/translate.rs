//! From one side's header to the other's (AccelTCP section 4.3, figures 7 and 8).
//!
//! Addresses, ports, numbers, timestamps, SACK blocks and the window become what the other peer
//! expects of the connection that it has with us. The checksum is changed by what changed: the sum
//! of addresses and ports once for all packets, the rest field by field, which is exact where a
//! number wraps around. So payload is not read, and a packet that was damaged on the way through
//! this device is still a damaged one for the peer.
//!
//! It decides nothing about whether a packet may pass; that is [`super::pair`]'s.

use core::net::IpAddr;
use core::ops::Range;

use abi::Header;
use abi::splice::SpliceSide;
use base::SeqNum;
use wire::checksum::Difference;
use wire::emit::{IpHeader, Link, ethernet_ip, set_lengths};
use wire::frame::protocol;
use wire::tcp::Flags;
use wire::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, Tuple};

use super::segment::Segment;
use crate::pipeline::rx::TransportAt;

/// Ethernet and the longer of the two IP headers.
const PREFIX_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES;
/// Bytes of the timestamps option with its padding (RFC 7323 appendix A).
const TIMESTAMP_BYTES: u16 = 12;
/// Numbers that an echo or a block may lie behind the latest one and still be told from one before
/// the splice.
const ECHO_REACH: u32 = 1 << 29;
/// End of the list of options, and no operation (RFC 9293 section 3.2).
const END: u8 = 0;
const NOP: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// What becomes of the headers of one direction.
#[derive(Debug)]
pub(super) struct Translation {
    /// Added to sequence numbers, and to acknowledgment numbers.
    seq: u32,
    ack: u32,
    clocks: Option<Clocks>,
    /// Shift of the windows that come, and of those that go.
    peer_scale: u8,
    own_scale: u8,
    /// The receiver agreed to SACK; both agreed to ECN.
    sack: bool,
    ecn: bool,
    /// No SACK block that is meant to pass begins before this: at first our own next byte at the
    /// splice, for what precedes it the receiver did not send.
    sack_floor: SeqNum,
    /// Bytes of options and payload that one segment for the receiver may have.
    room: u16,
    /// The connection that it leaves on, as we see it.
    pub(super) to: Tuple,
    /// Ethernet and IP header of what leaves.
    prefix: [u8; PREFIX_BYTES],
    l4: usize,
    /// What addresses and ports change of the two checksums.
    tcp_sum: Difference,
    ip_sum: Difference,
}

/// How the clocks of both sides lie to each other (RFC 7323).
#[derive(Debug)]
struct Clocks {
    /// Added to TSval.
    value: u32,
    /// Added to TSecr.
    echo: u32,
    /// No echo that is meant to pass lies before this: at first our own clock at the splice.
    echo_floor: u32,
    /// The latest TSval that the sender was given: it cannot echo a later one.
    echo_latest: u32,
}

/// A header on its way out: lengths and checksums are still those of the packet that came.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) header: Header,
    /// The window field in it.
    pub(super) window: u16,
    /// TSval as it came.
    pub(super) tsval: Option<u32>,
    /// An option with SACK blocks that the receiver can do nothing with is left out.
    pub(super) sack_left_out: bool,
    /// What changed of what the TCP checksum covers.
    difference: Difference,
    /// The IP header is a new one: lengths and identification are to be set.
    rebuilt: bool,
    /// Payload bytes that fit a segment under this header.
    pub(super) payload_max: u16,
}

/// Why a packet cannot be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    Malformed,
    HopLimit,
}

impl Translation {
    /// From `from`'s peer to `to`'s, on a wire with that MTU, by a device with that address.
    pub(super) fn new(from: &SpliceSide, to: &SpliceSide, mac: [u8; 6], mtu: u16) -> Self {
        let clocks = from.timestamps.zip(to.timestamps).map(|(from, to)| Clocks {
            value: to.value.wrapping_sub(from.recent),
            echo: to.recent.wrapping_sub(from.value),
            echo_floor: from.value,
            echo_latest: from.value,
        });
        let ip = IpHeader {
            source: to.tuple.local.addr,
            destination: to.tuple.remote.addr,
            protocol: protocol::TCP,
            ecn: 0,
            hop_limit: 0,
        };
        let mut prefix = [0; PREFIX_BYTES];
        ethernet_ip(&Link { source: mac, destination: to.link }, &ip, 0, &mut prefix);
        let options = if to.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        let headers = if to.tuple.local.addr.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        let fits = usize::from(mtu).saturating_sub(headers + TCP_BYTES);
        let fits = u16::try_from(fits).unwrap_or(u16::MAX);
        Self {
            seq: to.snd_nxt.0.wrapping_sub(from.rcv_nxt.0),
            ack: to.rcv_nxt.0.wrapping_sub(from.snd_nxt.0),
            clocks,
            peer_scale: from.peer_scale,
            own_scale: to.own_scale,
            sack: to.sack,
            ecn: from.ecn && to.ecn,
            sack_floor: from.snd_nxt,
            room: to.mss.saturating_add(options).min(fits),
            to: to.tuple,
            prefix,
            l4: ETHERNET_BYTES + ip.len(),
            tcp_sum: tcp_difference(&from.tuple, &to.tuple),
            ip_sum: address_difference(&from.tuple, &to.tuple).folded(),
        }
    }

    /// A sequence number of the sender, as the receiver has it.
    pub(super) fn seq(&self, seq: SeqNum) -> SeqNum {
        seq + self.seq
    }

    /// An acknowledgment number of the sender: in the receiver's own numbers.
    pub(super) fn ack(&self, ack: SeqNum) -> SeqNum {
        ack + self.ack
    }

    /// A TSval of the sender, as the receiver has it.
    pub(super) fn tsval(&self, value: u32) -> Option<u32> {
        self.clocks.as_ref().map(|clocks| value.wrapping_add(clocks.value))
    }

    /// The sender is given that TSval: it may echo it from now on.
    pub(super) fn note_given(&mut self, value: u32) {
        if let Some(clocks) = &mut self.clocks {
            clocks.note_given(value);
        }
    }

    /// Ethernet and IP header of what leaves.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix[..self.l4]
    }

    /// The headers of a segment for the other side, whose own bytes before `sent` were relayed.
    ///
    /// # Errors
    /// Why it cannot go there.
    pub(super) fn translate(
        &mut self,
        frame: &[u8],
        at: &TransportAt,
        segment: &Segment,
        sent: SeqNum,
    ) -> Result<Translated, Unfit> {
        // RFC 791 section 3.2, RFC 8200 section 3: who sends on counts it down.
        let hop_limit = match segment.hop_limit {
            0 | 1 => return Err(Unfit::HopLimit),
            limit => limit - 1,
        };
        let tcp = frame.get(segment.header.clone()).ok_or(Unfit::Malformed)?;
        let len = self.l4 + tcp.len();
        let mut header =
            Header::zeroed(len, ETHERNET_BYTES, self.l4).map_err(|_| Unfit::Malformed)?;
        let (prefix, out) = header.as_mut_slice().split_at_mut(self.l4);
        prefix.copy_from_slice(&self.prefix[..self.l4]);
        out.copy_from_slice(tcp);
        let class = if self.ecn { segment.class } else { segment.class & !3 };
        let old_ip = frame.get(at.l3..at.l4).unwrap_or_default();
        let rebuilt = !self.write_ip(old_ip, class, hop_limit, prefix);
        let (fixed, options) = out.split_first_chunk_mut().ok_or(Unfit::Malformed)?;
        let mut difference = self.tcp_sum;
        let window = self.write_fixed(segment, fixed, &mut difference);
        // Numbers wrap: the floor follows, a good way behind.
        let ahead = segment.ack.distance(self.sack_floor).max(0).unsigned_abs();
        self.sack_floor += ahead.saturating_sub(ECHO_REACH);
        let (tsval, sack_left_out) =
            self.write_options(options, sent, &mut difference).ok_or(Unfit::Malformed)?;
        let options = u16::try_from(options.len()).unwrap_or(0);
        let payload_max = self.room.saturating_sub(options).max(1);
        Ok(Translated { header, window, tsval, sack_left_out, difference, rebuilt, payload_max })
    }

    /// What stays of the IP header; the rest is in the template already. Says no where the packet
    /// needs a header of its own: another IP version, or options, which end here.
    fn write_ip(&self, old: &[u8], class: u8, hop_limit: u8, prefix: &mut [u8]) -> bool {
        let ip = &mut prefix[ETHERNET_BYTES..];
        let same = old.len() == ip.len() && old[0] >> 4 == ip[0] >> 4;
        match (same, ip.len()) {
            (true, IPV4_BYTES) => {
                // Length, identification, flags and, until it is changed below, the checksum.
                ip[2..12].copy_from_slice(&old[2..12]);
                (ip[1], ip[8]) = (class, hop_limit);
                let mut sum = self.ip_sum;
                sum.u16(u16::from(old[1]), u16::from(class));
                sum.u16(u16::from(old[8]) << 8, u16::from(hop_limit) << 8);
                let checksum = sum.apply(u16::from_be_bytes([old[10], old[11]]));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (false, IPV4_BYTES) => (ip[1], ip[8]) = (class, hop_limit),
            _ => {
                if same {
                    // The flow label, and the length.
                    ip[1..6].copy_from_slice(&old[1..6]);
                }
                ip[0] = 0x60 | class >> 4;
                ip[1] = ip[1] & 0x0f | class << 4;
                ip[7] = hop_limit;
            }
        }
        same
    }

    /// Ports, numbers, flags and the window, which it gives.
    fn write_fixed(
        &self,
        segment: &Segment,
        out: &mut [u8; TCP_BYTES],
        difference: &mut Difference,
    ) -> u16 {
        out[0..2].copy_from_slice(&self.to.local.port.to_be_bytes());
        out[2..4].copy_from_slice(&self.to.remote.port.to_be_bytes());
        let seq = self.seq(segment.seq);
        difference.u32(segment.seq.0, seq.0, false);
        out[4..8].copy_from_slice(&seq.0.to_be_bytes());
        if segment.flags.has(Flags::ACK) {
            let ack = self.ack(segment.ack);
            difference.u32(segment.ack.0, ack.0, false);
            out[8..12].copy_from_slice(&ack.0.to_be_bytes());
        }
        let mut flags = segment.flags;
        if !self.ecn {
            flags = flags.without(Flags::ECE.with(Flags::CWR));
        }
        difference.u16(u16::from(segment.flags.0), u16::from(flags.0));
        out[13] = flags.0;
        // RFC 7323 section 2.3: both shifts are at most 14.
        let bytes = u32::from(segment.window) << self.peer_scale;
        let window = u16::try_from(bytes >> self.own_scale).unwrap_or(u16::MAX);
        difference.u16(segment.window, window);
        out[14..16].copy_from_slice(&window.to_be_bytes());
        window
    }

    /// Timestamps and SACK blocks; what else there is passes as it is. Returns TSval as it came and
    /// whether SACK blocks were left out, or `None` if the list of options is malformed.
    fn write_options(
        &self,
        options: &mut [u8],
        sent: SeqNum,
        difference: &mut Difference,
    ) -> Option<(Option<u32>, bool)> {
        // RFC 7323 appendix A: what nearly every segment has.
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
                                blank(options, at, rest, difference);
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

    /// TSval and TSecr at `at`; gives TSval as it came.
    fn write_timestamps(
        &self,
        options: &mut [u8],
        at: usize,
        difference: &mut Difference,
    ) -> Option<u32> {
        let value = read(options, at)?;
        let echo = read(options, at + 4)?;
        if let Some(clocks) = &self.clocks {
            write(options, at, value.wrapping_add(clocks.value), difference);
            write(options, at + 4, clocks.echo(echo), difference);
        }
        Some(value)
    }

    /// Translates SACK blocks: they name the receiver's own bytes, as `ack` does (RFC 2018). Says
    /// whether they pass. An option does not pass if one of its blocks names bytes from before the
    /// splice, which reports a duplicate (RFC 2883) of the host's own bytes; or bytes behind
    /// `sent`, which the receiver never sent; or none.
    fn write_sack(
        &self,
        options: &mut [u8],
        at: Range<usize>,
        sent: SeqNum,
        difference: &mut Difference,
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

impl Clocks {
    /// The sender is given that TSval. Clocks wrap: the floor follows the latest one, a good way
    /// behind.
    fn note_given(&mut self, value: u32) {
        let ahead = value.wrapping_sub(self.echo_latest);
        if ahead <= i32::MAX.unsigned_abs() {
            self.echo_latest = value;
            let reach = value.wrapping_sub(self.echo_floor);
            self.echo_floor = self.echo_floor.wrapping_add(reach.saturating_sub(ECHO_REACH));
        }
    }

    /// An echo of our clock, as an echo of the receiver's. One from before the splice is of a
    /// moment that the receiver's clock cannot name; it says the moment of the splice, so that the
    /// receiver measures too short a time and not a wrong one. One of a moment to come is of a
    /// TSval that was never sent, and says the latest that was.
    fn echo(&self, echo: u32) -> u32 {
        let ahead = echo.wrapping_sub(self.echo_floor);
        let latest = self.echo_latest.wrapping_sub(self.echo_floor);
        let passes = if ahead > i32::MAX.unsigned_abs() { 0 } else { ahead.min(latest) };
        self.echo_floor.wrapping_add(passes).wrapping_add(self.echo)
    }
}

impl Translated {
    /// The whole header of a packet with `payload` bytes, whose TCP checksum was right.
    pub(super) fn finish(mut self, payload: usize) -> Header {
        let (l3, l4, end) = (self.header.l3(), self.header.l4(), self.header.len() + payload);
        let out = self.header.as_mut_slice();
        if self.rebuilt {
            set_lengths(out, l3, end, 0);
        }
        if let Some(field) = out.get_mut(l4 + 16..).and_then(|f| f.first_chunk_mut::<2>()) {
            *field = self.difference.apply(u16::from_be_bytes(*field)).to_be_bytes();
        }
        self.header
    }
}

fn read(options: &[u8], at: usize) -> Option<u32> {
    options.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

/// Changes four bytes. Options begin at an even place of the segment.
fn write(options: &mut [u8], at: usize, new: u32, difference: &mut Difference) {
    if let Some(field) = options.get_mut(at..).and_then(|f| f.first_chunk_mut::<4>()) {
        difference.u32(u32::from_be_bytes(*field), new, at % 2 == 1);
        *field = new.to_be_bytes();
    }
}

/// Overwrites an option that the receiver did not agree to.
fn blank(options: &mut [u8], at: usize, len: usize, difference: &mut Difference) {
    for (at, byte) in options.iter_mut().enumerate().skip(at).take(len) {
        let shift = if at % 2 == 0 { 8 } else { 0 };
        difference.u16(u16::from(*byte) << shift, u16::from(NOP) << shift);
        *byte = NOP;
    }
}

/// What the change from one connection's addresses to the other's does to a sum. Here the source is
/// the one side's peer, there it is us.
fn address_difference(from: &Tuple, to: &Tuple) -> Difference {
    let mut difference = Difference::new();
    for (old, new) in [(from.remote.addr, to.local.addr), (from.local.addr, to.remote.addr)] {
        words(old, |word| difference.u16(word, 0));
        words(new, |word| difference.u16(0, word));
    }
    difference
}

/// The same, with the ports (figure 8, line 3). Protocol and length are the same in both
/// pseudo-headers, whatever the IP versions (RFC 8200 section 8.1).
fn tcp_difference(from: &Tuple, to: &Tuple) -> Difference {
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
