//! The attacker. It is off-path: it may forge any source address, and is assumed to know all
//! connections and the sequence number that each end expects. It never sends exactly that number
//! (RFC 5961), and can only guess SYN cookies.

use std::collections::BTreeMap;

use base::{Prng, SeqNum};
use core::net::{IpAddr, Ipv4Addr};
use wire::emit::EthernetAddrs;
use wire::frame::protocol;
use wire::segment::tcp_packet_from_peer;
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};
use wire::{Endpoint, Tuple};

/// A kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloodKind {
    /// SYNs, each from another address.
    Syn,
    /// SYNs from unused addresses of the machine's own subnet.
    SynOnLink,
    /// Acknowledgments: three of four with a guessed cookie and no connection, the fourth of an
    /// existing connection.
    Ack,
    /// Resets of existing connections: half of them in the receive window, if it does not move, and
    /// none with the exact number.
    Rst,
}

/// The receive state that the victim last announced to a peer.
#[derive(Clone, Copy, Debug)]
struct KnownConn {
    /// RCV.NXT of the victim.
    expects: SeqNum,
    /// True if the peer sends no data, so that the window does not move.
    window_fixed: bool,
}

/// The attacker, and counters of its frames.
pub(crate) struct Attacker {
    kind: FloodKind,
    link: EthernetAddrs,
    target: Ipv4Addr,
    aims: BTreeMap<Tuple, KnownConn>,
    /// Keys of `aims`, oldest first.
    order: Vec<Tuple>,
    random: Prng,
    /// Frames of no connection.
    pub(crate) unmatched: u64,
    /// Frames of existing connections.
    pub(crate) aimed: u64,
    /// Frames of existing connections whose sequence number is in the window.
    pub(crate) in_window: u64,
}

impl Attacker {
    pub(crate) fn new(kind: FloodKind, link: EthernetAddrs, target: Ipv4Addr) -> Self {
        let (aims, random) = (BTreeMap::new(), Prng::new(kind as u64));
        let (strays, aimed, in_window) = (0, 0, 0);
        Self {
            kind,
            link,
            target,
            aims,
            order: vec![],
            random,
            unmatched: strays,
            aimed,
            in_window,
        }
    }

    /// Observes a segment that the victim has sent.
    pub(crate) fn observe(&mut self, tuple: Tuple, segment: &TcpHeader, still: bool) {
        if segment.flags.has(TcpFlags::RST) || !segment.flags.has(TcpFlags::ACK) {
            return;
        }
        let aim = KnownConn { expects: segment.ack, window_fixed: still };
        if self.aims.insert(tuple, aim).is_none() {
            self.order.push(tuple);
            if self.order.len() > 256 {
                // The oldest connection is closed by now.
                self.aims.remove(&self.order.remove(0));
            }
        }
    }

    /// Returns the next flood frame.
    pub(crate) fn frame(&mut self) -> Vec<u8> {
        let number = self.unmatched + self.aimed;
        match self.kind {
            FloodKind::Syn | FloodKind::SynOnLink => self.syn(),
            FloodKind::Ack if number % 4 == 3 => self.aimed(TcpFlags::ACK, false),
            FloodKind::Ack => self.guess(),
            FloodKind::Rst => self.aimed(TcpFlags::RST, number % 2 == 0),
        }
    }

    /// Returns the tuple of a random peer, in the victim's subnet or elsewhere.
    fn random_peer(&mut self, on_link: bool) -> Tuple {
        let [a, b, c, d, e, ..] = self.random.next_u64().to_be_bytes();
        let net = if on_link { [10, 0, a | 64, b] } else { [198, 18 | a & 1, b, c] };
        let port = u16::from_be_bytes([d | 4, e]);
        let remote = Endpoint { addr: Ipv4Addr::from(net).into(), port };
        Tuple { local: Endpoint { addr: self.target.into(), port: 80 }, remote }
    }

    fn syn(&mut self) -> Vec<u8> {
        self.unmatched += 1;
        let tuple = self.random_peer(self.kind == FloodKind::SynOnLink);
        let seq = SeqNum(self.random.next_u32());
        let mut segment =
            TcpHeader { seq, flags: TcpFlags::SYN, window: 65_535, ..TcpHeader::default() };
        let options = &mut segment.options;
        (options.mss, options.window_scale, options.sack_permitted) = (Some(1460), Some(7), true);
        options.timestamps = Some(TcpTimestamps { value: seq.0, echo: 0 });
        self.emit(&tuple, segment)
    }

    /// Returns an acknowledgment with a guessed cookie. Only the cookie's epoch is right, since
    /// anyone who sends a SYN can learn it.
    fn guess(&mut self) -> Vec<u8> {
        self.unmatched += 1;
        let tuple = self.random_peer(false);
        let [seq, ack, value, echo] = [(); 4].map(|()| self.random.next_u32());
        let (seq, ack) = (SeqNum(seq), SeqNum(ack & 0x07ff_ffff | 1 << 27) + 1);
        let mut segment =
            TcpHeader { seq, ack, flags: TcpFlags::ACK, window: 500, ..TcpHeader::default() };
        segment.options.timestamps = Some(TcpTimestamps { value, echo });
        self.emit(&tuple, segment)
    }

    fn aimed(&mut self, flags: TcpFlags, in_window: bool) -> Vec<u8> {
        self.aimed += 1;
        let pick = self.random.below(self.order.len() as u64);
        let tuple = self.order[usize::try_from(pick).unwrap()];
        let KnownConn { expects, window_fixed: still } = self.aims[&tuple];
        let in_window = in_window && still;
        self.in_window += u64::from(in_window);
        // Up to 16,000 beyond the exact number, or about half the sequence space away.
        let (least, most) = if in_window { (1, 16_000) } else { (1 << 30, 3 << 30) };
        let ahead = least + self.random.below(most - least);
        let seq = expects + u32::try_from(ahead).unwrap();
        let ack = SeqNum(self.random.next_u32());
        self.emit(&tuple, TcpHeader { seq, ack, flags, window: 500, ..TcpHeader::default() })
    }

    fn emit(&self, tuple: &Tuple, segment: TcpHeader) -> Vec<u8> {
        tcp_packet_from_peer(tuple, &self.link, &segment, b"")
    }
}

/// Parses a TCP frame over IPv4. Returns its tuple, with the sender as the local end, and its
/// segment; `None` for other frames.
pub(crate) fn parse_sent(frame: &[u8]) -> Option<(Tuple, TcpHeader)> {
    let addr = |at: usize| -> Option<IpAddr> {
        Some(Ipv4Addr::from(*frame.get(at..)?.first_chunk::<4>()?).into())
    };
    if frame.get(12..14) != Some(&[8, 0]) || frame.get(23) != Some(&protocol::TCP) {
        return None;
    }
    let (segment, _) = TcpHeader::parse(frame.get(34..)?).ok()?;
    let local = Endpoint { addr: addr(26)?, port: segment.source };
    let remote = Endpoint { addr: addr(30)?, port: segment.destination };
    Some((Tuple { local, remote }, segment))
}
