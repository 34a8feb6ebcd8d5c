//! Frames of an attacker.
//!
//! An off-path attacker knows addresses and ports of a connection but sees none of its packets, so
//! it must guess sequence numbers. Its checksums are right, except those of damaged copies.

use core::net::{IpAddr, Ipv4Addr};

use base::{Prng, SeqNum};
use wire::emit::{self, EthernetAddrs};
use wire::frame::{ParsedFrame, parse, protocol};
use wire::segment::{HeaderLayout, tcp_packet_from_peer};
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};
use wire::{ETHERNET_BYTES, Endpoint, Tuple, UDP_BYTES};

/// Knowledge of the attacker.
#[derive(Debug)]
pub(crate) struct AttackTarget<'a> {
    /// The attacker's MAC address.
    pub(crate) source_mac: [u8; 6],
    pub(crate) server_mac: [u8; 6],
    /// The server as the victim knows it, and its IPv4 address.
    pub(crate) server: Endpoint,
    pub(crate) v4_server: Endpoint,
    /// Another node's endpoint of a connection with the server, and that node's MAC address.
    pub(crate) victim: Option<([u8; 6], Endpoint)>,
    /// Next sequence numbers that the server and the victim expect. `Some` if forged segments may
    /// carry data: then guesses near these are avoided, because a right one would be accepted.
    pub(crate) numbers: Option<[SeqNum; 2]>,
    /// A frame that crossed the network.
    pub(crate) seen: &'a [u8],
}

/// Returns a frame of one of the kinds whose bits are set in `kinds`.
pub(crate) fn frame(rng: &mut Prng, kinds: u8, target: &AttackTarget<'_>) -> Vec<u8> {
    for _ in 0..16 {
        let kind = rng.below(4);
        if kinds >> kind & 1 == 1 {
            return match kind {
                0 => noise(rng, target),
                1 => flood(rng, target),
                2 => forged(rng, target),
                _ => damaged(rng, target),
            };
        }
    }
    noise(rng, target)
}

/// Random bytes after an EtherType that the stack accepts.
fn noise(rng: &mut Prng, target: &AttackTarget<'_>) -> Vec<u8> {
    let len = 14 + rng.below(200) as usize;
    let mut bytes: Vec<u8> = (0..len).map(|_| (rng.next_u64() & 0xff) as u8).collect();
    bytes[..6].copy_from_slice(&target.server_mac);
    let types = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xcc]];
    bytes[12..14].copy_from_slice(&types[rng.below(4) as usize]);
    // Half of them look like IP, to get past the first check.
    if rng.chance(0.5) && bytes.len() > 40 {
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14] = 0x45;
        bytes[20..22].fill(0);
        bytes[23] = [1, 6, 17][rng.below(3) as usize];
        if let IpAddr::V4(v4) = target.v4_server.addr {
            bytes[30..34].copy_from_slice(&v4.octets());
        }
        let end = bytes.len();
        emit::set_lengths(&mut bytes, ETHERNET_BYTES, end, 0);
    }
    bytes
}

/// A SYN from an unused address.
fn flood(rng: &mut Prng, target: &AttackTarget<'_>) -> Vec<u8> {
    // An unused address on the link, so that the server must resolve its neighbor.
    let addr = Ipv4Addr::new(10, 0, 200, (rng.below(250) + 1) as u8);
    let source = Endpoint { addr: addr.into(), port: rng.range(1, 65_535) as u16 };
    let mut segment = TcpHeader {
        seq: SeqNum(rng.next_u32()),
        flags: TcpFlags::SYN,
        window: 65_535,
        ..TcpHeader::default()
    };
    segment.options.mss = Some(rng.below(3_000) as u16);
    segment.options.sack_permitted = rng.chance(0.5);
    if rng.chance(0.5) {
        segment.options.timestamps = Some(TcpTimestamps { value: rng.next_u32(), echo: 0 });
        segment.options.window_scale = Some(rng.below(20) as u8);
    }
    tcp(target, target.server_mac, source, target.v4_server, segment, 0)
}

/// Distance from an expected number within which a guess could hit: twice a window.
const NEAR: u32 = 1 << 21;

/// A segment with guessed numbers on another node's connection, to either endpoint. It carries data
/// only if the expected numbers are known: with a window of 1 MiB one guess in 4096 would hit.
fn forged(rng: &mut Prng, target: &AttackTarget<'_>) -> Vec<u8> {
    let Some((victim_mac, victim)) = target.victim else { return flood(rng, target) };
    let flags = [
        TcpFlags::RST,
        TcpFlags::RST.with(TcpFlags::ACK),
        TcpFlags::SYN,
        TcpFlags::SYN.with(TcpFlags::ACK),
        TcpFlags::ACK,
        TcpFlags::FIN.with(TcpFlags::ACK),
        TcpFlags::NONE,
    ];
    let mut segment = TcpHeader {
        seq: SeqNum(rng.next_u32()),
        ack: SeqNum(rng.next_u32()),
        flags: flags[rng.below(flags.len() as u64) as usize],
        window: rng.below(65_536) as u16,
        ..TcpHeader::default()
    };
    if rng.chance(0.3) {
        let (value, echo) = (rng.next_u32(), rng.next_u32());
        segment.options.timestamps = Some(TcpTimestamps { value, echo });
    }
    let to_server = rng.chance(0.5);
    let data = target.numbers.map_or(0, |numbers| {
        let ahead = segment.seq.0.wrapping_sub(numbers[usize::from(!to_server)].0);
        let near = ahead.wrapping_add(NEAR) < 2 * NEAR;
        if near || rng.chance(0.5) { 0 } else { rng.range(1, 1_000) as usize }
    });
    if to_server {
        tcp(target, target.server_mac, victim, target.server, segment, data)
    } else {
        tcp(target, victim_mac, target.server, victim, segment, data)
    }
}

/// A copy of a recorded frame, truncated or with a flipped bit, so that its checksum fails.
fn damaged(rng: &mut Prng, target: &AttackTarget<'_>) -> Vec<u8> {
    let mut bytes = target.seen.to_vec();
    if bytes.len() < 40 || bytes.get(12..14) == Some(&[0x08, 0x06]) {
        return noise(rng, target);
    }
    if rng.chance(0.5) {
        let keep = rng.below(bytes.len() as u64) as usize;
        bytes.truncate(keep.max(14));
    } else {
        // One bit: several could pass a 16-bit sum by chance. From byte 20, after the IPv6 length,
        // which could truncate the packet.
        let from = 20;
        let bit = from * 8 + rng.below((bytes.len() - from) as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

/// Returns an altered copy of a QUIC datagram with a right checksum; `None` if `seen` is not a
/// datagram with a payload.
pub(crate) fn quic(rng: &mut Prng, seen: &[u8], source_mac: [u8; 6]) -> Option<Vec<u8>> {
    let mut bytes = seen.to_vec();
    let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) else { return None };
    let at = ip.l4 + UDP_BYTES;
    let len = ip.end.checked_sub(at).filter(|&len| len > 0 && ip.protocol == protocol::UDP)?;
    bytes.truncate(ip.end);
    bytes[6..12].copy_from_slice(&source_mac);
    let random = |rng: &mut Prng, out: &mut [u8]| out.fill_with(|| (rng.next_u64() & 0xff) as u8);
    match rng.below(8) {
        // Unchanged: a replay.
        0 => {}
        1 => bytes[at + rng.below(len as u64) as usize] ^= 1 << rng.below(8),
        // Key phase, length of the packet number, form.
        2 => bytes[at] ^= 1 << rng.below(8),
        // A packet of an unknown connection, or a possible stateless reset.
        3 => {
            random(rng, &mut bytes[at..]);
            bytes[at] = bytes[at] & 0x3f | 0x40;
        }
        // A packet of this connection that is random after its connection ID.
        4 => random(rng, &mut bytes[at + len.min(9)..]),
        // An unknown version.
        5 => {
            bytes[at] |= 0xc0;
            random(rng, &mut bytes[at + len.min(1)..at + len.min(5)]);
        }
        6 => bytes.truncate(at + rng.below(len as u64) as usize),
        // From another address, which looks like a migration if it arrives first (RFC 9000 section
        // 9.3.2).
        _ => bytes[ip.l4 + 1] ^= 1,
    }
    let layout = HeaderLayout { l3: ip.l3, l4: ip.l4, protocol: protocol::UDP };
    layout.complete(&mut bytes, rng.next_u32() as u16);
    Some(bytes)
}

fn tcp(
    target: &AttackTarget<'_>,
    to_mac: [u8; 6],
    source: Endpoint,
    destination: Endpoint,
    segment: TcpHeader,
    data: usize,
) -> Vec<u8> {
    let link = EthernetAddrs { source: target.source_mac, destination: to_mac };
    let tuple = Tuple { local: destination, remote: source };
    tcp_packet_from_peer(&tuple, &link, &segment, &vec![b'x'; data])
}
