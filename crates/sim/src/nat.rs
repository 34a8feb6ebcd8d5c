//! A NAT in front of a client: the client's external UDP port changes while connections are open
//! (RFC 9000 section 9; RFC 4787).
//!
//! Called by [`crate::net`] for every frame from or to a client. The client does not notice the
//! change; the server finds its peer at another address.

use wire::checksum::adjust;
use wire::frame::{ParsedFrame, parse, protocol};

use crate::events::SimLinkFrame;
use crate::quic::{CLIENT_PORT, SERVER_PORT};

/// Base of the external ports: the n-th rebinding maps port `OUTSIDE + n`.
const OUTSIDE: u16 = 50_000;

/// The NAT of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nat {
    /// Number of rebindings.
    changes: u16,
    /// Datagrams to previous ports are dropped.
    forgets: bool,
    /// The server has sent to the latest port.
    followed: bool,
}

/// Decision about an inbound frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NatVerdict {
    /// Deliver.
    In,
    /// Deliver; it is the server's first datagram to the latest port.
    Followed,
    /// Drop: the port is no longer mapped.
    Nowhere,
}

impl Nat {
    /// Maps the client to another external port.
    pub(crate) const fn rebind(&mut self, forgets: bool) {
        self.changes += 1;
        self.forgets = forgets;
        self.followed = false;
    }

    /// Translates a frame from the client.
    pub(crate) fn leave(&self, frame: &mut SimLinkFrame) {
        if self.changes == 0 {
            return;
        }
        if let Some((source, _, at)) = ports(&frame.bytes).filter(|ports| ports.0 == CLIENT_PORT) {
            rewrite(frame, at, 0, source, OUTSIDE + self.changes);
        }
    }

    /// Translates a frame to the client.
    pub(crate) fn enter(&mut self, frame: &mut SimLinkFrame) -> NatVerdict {
        let Some((source, port, at)) = ports(&frame.bytes).filter(|_| self.changes > 0) else {
            return NatVerdict::In;
        };
        let latest = OUTSIDE + self.changes;
        if port == CLIENT_PORT {
            return if self.forgets { NatVerdict::Nowhere } else { NatVerdict::In };
        }
        if !(OUTSIDE..=latest).contains(&port) {
            return NatVerdict::In;
        }
        if port != latest && self.forgets {
            return NatVerdict::Nowhere;
        }
        rewrite(frame, at, 2, port, CLIENT_PORT);
        let first = port == latest && source == SERVER_PORT && !self.followed;
        self.followed |= first;
        if first { NatVerdict::Followed } else { NatVerdict::In }
    }
}

/// Returns the ports of a UDP datagram and the offset of its UDP header.
fn ports(bytes: &[u8]) -> Option<(u16, u16, usize)> {
    let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { return None };
    let header: &[u8; 4] = bytes.get(ip.l4..ip.end)?.first_chunk()?;
    let [a, b, c, d] = *header;
    let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), ip.l4);
    (ip.protocol == protocol::UDP).then_some(ports)
}

/// Replaces a port and updates the checksum. A partial checksum covers only the pseudo-header,
/// which has no ports.
fn rewrite(frame: &mut SimLinkFrame, l4: usize, at: usize, old: u16, new: u16) {
    let bytes = &mut frame.bytes;
    bytes[l4 + at..l4 + at + 2].copy_from_slice(&new.to_be_bytes());
    let Some(&[a, b]) = bytes.get(l4 + 6..l4 + 8).and_then(|field| field.first_chunk()) else {
        return;
    };
    let sum = u16::from_be_bytes([a, b]);
    if frame.checksum == abi::Checksum::Partial || sum == 0 {
        return;
    }
    // RFC 768: a checksum of zero is transmitted as all ones.
    let sum = match adjust(sum, old, new) {
        0 => u16::MAX,
        sum => sum,
    };
    bytes[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Checksum;
    use wire::checksum::pseudo_header;
    use wire::emit::{self, EthernetAddrs, IpHeader};

    fn datagram(source: u16, destination: u16) -> SimLinkFrame {
        let ip = IpHeader {
            source: [10, 0, 0, 2].into(),
            destination: [10, 0, 0, 1].into(),
            protocol: protocol::UDP,
            ecn: 0,
            hop_limit: 64,
        };
        let link = EthernetAddrs { source: [2; 6], destination: [4; 6] };
        let mut bytes = vec![b'x'; 14 + 20 + 8 + 5];
        emit::udp_template(&link, &ip, [source, destination], 5, &mut bytes[..42]);
        emit::set_lengths(&mut bytes, 14, 47, 1);
        bytes[40..42].fill(0);
        let mut sum = pseudo_header(ip.source, ip.destination, protocol::UDP, 13);
        sum.add(&bytes[34..]);
        bytes[40..42].copy_from_slice(&sum.finish().to_be_bytes());
        SimLinkFrame { from: 1, bytes, checksum: Checksum::Unchecked, segment_size: 0 }
    }

    fn is_good(frame: &SimLinkFrame) -> bool {
        let mut sum = pseudo_header([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), protocol::UDP, 13);
        sum.add(&frame.bytes[34..]);
        sum.finish() == 0
    }

    #[test]
    fn ports_change_and_come_back() {
        let mut nat = Nat::default();
        let mut out = datagram(CLIENT_PORT, SERVER_PORT);
        nat.leave(&mut out);
        assert_eq!(ports(&out.bytes), Some((CLIENT_PORT, SERVER_PORT, 34)), "nothing yet");
        nat.rebind(false);
        nat.leave(&mut out);
        assert_eq!(ports(&out.bytes), Some((OUTSIDE + 1, SERVER_PORT, 34)));
        assert!(is_good(&out));
        for (port, way) in [
            (CLIENT_PORT, NatVerdict::In),
            (OUTSIDE + 1, NatVerdict::Followed),
            (OUTSIDE + 1, NatVerdict::In),
            (OUTSIDE + 2, NatVerdict::In),
        ] {
            let mut back = datagram(SERVER_PORT, port);
            assert_eq!(nat.enter(&mut back), way, "{port}");
            let inside = if port == OUTSIDE + 2 { port } else { CLIENT_PORT };
            assert_eq!(ports(&back.bytes), Some((SERVER_PORT, inside, 34)));
            assert!(is_good(&back));
        }
        nat.rebind(true);
        for port in [CLIENT_PORT, OUTSIDE + 1] {
            assert_eq!(nat.enter(&mut datagram(SERVER_PORT, port)), NatVerdict::Nowhere);
        }
        assert_eq!(nat.enter(&mut datagram(SERVER_PORT, OUTSIDE + 2)), NatVerdict::Followed);
    }
}
