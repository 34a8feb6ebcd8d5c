//! Neighbors of a stack that shares the kernel's addresses.
//!
//! Answers to ARP requests and neighbor solicitations go to the kernel, which has the same address.
//! Therefore the stack's own solicitations do not leave: the kernel's neighbor table answers them,
//! and the kernel resolves the address if it does not know it. The stack repeats an unanswered
//! solicitation by itself.
//!
//! Called by [`super::XdpLink`] for frames that the stack sends. The stack sees an ordinary answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::link::RxFrame;
use abi::{Checksum, PacketPool};
use wire::checksum::pseudo_header;

use crate::netlink;

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Offsets of ARP's sender and target protocol addresses.
const ARP_SENDER: usize = 14 + 14;
const ARP_TARGET: usize = 14 + 24;
const ARP_BYTES: usize = 14 + 28;
/// Offset of the ICMPv6 message, of the target in it, and the end of the target.
const ICMPV6_AT: usize = 14 + 40;
const ND_TARGET: usize = ICMPV6_AT + 8;
const ND_TARGET_END: usize = ND_TARGET + 16;

/// A question of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Solicitation {
    Arp { sender: [u8; 4], target: [u8; 4] },
    Ndisc { sender: [u8; 16], target: [u8; 16] },
}

/// The kernel's neighbor table of an interface.
#[derive(Debug)]
pub(super) struct KernelNeighbors {
    interface: u32,
    mac: [u8; 6],
}

/// A frame that the stack sends, as seen by [`KernelNeighbors`].
#[derive(Debug)]
pub(super) enum NeighborAnswer {
    /// Not about neighbors: to be sent.
    NotAsked,
    /// Answered by this frame, or by none if the kernel does not know the neighbor yet.
    Asked(Option<Vec<u8>>),
}

impl KernelNeighbors {
    pub(super) const fn new(interface: u32, mac: [u8; 6]) -> Self {
        Self { interface, mac }
    }

    /// Returns the table for a device with another link address.
    pub(super) fn with_address(self, mac: [u8; 6]) -> Self {
        Self { mac, ..self }
    }

    /// Answers a frame with these headers if it is a solicitation.
    pub(super) fn answer(&self, frame: &[u8]) -> NeighborAnswer {
        if frame.get(12..14) == Some(&ETHERTYPE_ARP) && solicitation(frame).is_none() {
            // Answers and announcements of the address are the kernel's task.
            return NeighborAnswer::Asked(None);
        }
        let Some(asked) = solicitation(frame) else { return NeighborAnswer::NotAsked };
        let target: IpAddr = match asked {
            Solicitation::Arp { target, .. } => Ipv4Addr::from(target).into(),
            Solicitation::Ndisc { target, .. } => Ipv6Addr::from(target).into(),
        };
        // The kernel resolves the address, or confirms one that it has not used lately. An error
        // means that the interface is down: the stack's transmits are dropped as on any link.
        let _ = netlink::use_neighbor(self.interface, target);
        let known = netlink::neighbor(self.interface, target).unwrap_or(None);
        NeighborAnswer::Asked(known.map(|mac| self.reply(asked, mac)))
    }

    fn reply(&self, asked: Solicitation, mac: [u8; 6]) -> Vec<u8> {
        let mut frame = self.mac.to_vec();
        frame.extend(mac);
        match asked {
            Solicitation::Arp { sender, target } => {
                frame.extend(ETHERTYPE_ARP);
                // Ethernet, IPv4, lengths of their addresses, reply.
                frame.extend([0, 1, 8, 0, 6, 4, 0, 2]);
                frame.extend(mac);
                frame.extend(target);
                frame.extend(self.mac);
                frame.extend(sender);
            }
            Solicitation::Ndisc { sender, target } => {
                frame.extend(ETHERTYPE_IPV6);
                // Version; 32 bytes of ICMPv6; hop limit 255 (RFC 4861 section 7.1.2).
                frame.extend([0x60, 0, 0, 0, 0, 32, ICMPV6, 255]);
                frame.extend(target);
                frame.extend(sender);
                // Flags: solicited, override.
                frame.extend([NEIGHBOR_ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0]);
                frame.extend(target);
                // Option: target link address, 8 bytes.
                frame.extend([2, 1]);
                frame.extend(mac);
                let (from, to) = (Ipv6Addr::from(target), Ipv6Addr::from(sender));
                let mut sum = pseudo_header(from.into(), to.into(), ICMPV6, 32);
                sum.add(&frame[ICMPV6_AT..]);
                frame[ICMPV6_AT + 2..ICMPV6_AT + 4].copy_from_slice(&sum.finish().to_be_bytes());
            }
        }
        frame
    }
}

/// Returns the received frame for an answer.
pub(super) fn received(answer: &[u8], pool: &mut PacketPool) -> Option<RxFrame> {
    let packet = pool.copy(answer)?;
    Some(RxFrame { packet, checksum: Checksum::Good, segment_size: 0 })
}

fn solicitation(frame: &[u8]) -> Option<Solicitation> {
    let ethertype: [u8; 2] = frame.get(12..14)?.try_into().ok()?;
    match ethertype {
        // An ARP request (operation 1).
        ETHERTYPE_ARP if frame.get(20..22)? == [0, 1] => {
            let sender = frame.get(ARP_SENDER..ARP_SENDER + 4)?.try_into().ok()?;
            let target = frame.get(ARP_TARGET..ARP_BYTES)?.try_into().ok()?;
            Some(Solicitation::Arp { sender, target })
        }
        ETHERTYPE_IPV6
            if *frame.get(20)? == ICMPV6 && *frame.get(ICMPV6_AT)? == NEIGHBOR_SOLICITATION =>
        {
            let sender = frame.get(22..38)?.try_into().ok()?;
            let target = frame.get(ND_TARGET..ND_TARGET_END)?.try_into().ok()?;
            Some(Solicitation::Ndisc { sender, target })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use wire::std_formats::{
        ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscRepr,
    };

    use super::*;

    const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
    const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];

    #[test]
    fn answers_are_well_formed() {
        let neighbors = KernelNeighbors::new(1, OUR_MAC);
        let asked = Solicitation::Arp { sender: [10, 0, 0, 1], target: [10, 0, 0, 2] };
        let reply = neighbors.reply(asked, PEER_MAC);
        let arp = ArpRepr::parse(&ArpPacket::new_checked(&reply[14..]).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 { source_hardware_addr, source_protocol_addr, .. } = arp else {
            panic!("{arp:?}")
        };
        assert_eq!(source_hardware_addr, EthernetAddress(PEER_MAC));
        assert_eq!(source_protocol_addr.octets(), [10, 0, 0, 2]);
        let target = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let asked = Solicitation::Ndisc { sender: [1; 16], target };
        let reply = neighbors.reply(asked, PEER_MAC);
        assert_eq!(usize::from(reply[19]), reply.len() - ICMPV6_AT);
        let packet = Icmpv6Packet::new_checked(&reply[ICMPV6_AT..]).unwrap();
        let (from, to) = (Ipv6Addr::from(target), Ipv6Addr::from([1; 16]));
        let parsed = Icmpv6Repr::parse(&from, &to, &packet, &wire::std_formats_caps()).unwrap();
        let Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) = parsed
        else {
            panic!("{parsed:?}")
        };
        assert_eq!(target_addr.octets(), target);
        assert_eq!(lladdr.unwrap().as_bytes(), PEER_MAC);
        assert!(received(&reply, &mut PacketPool::new(1)).is_some());
    }

    #[test]
    fn solicitations_are_recognized() {
        let mut arp = vec![0; ARP_BYTES];
        arp[12..14].copy_from_slice(&ETHERTYPE_ARP);
        arp[21] = 1;
        arp[ARP_TARGET..].copy_from_slice(&[10, 0, 0, 2]);
        let expected = Solicitation::Arp { sender: [0; 4], target: [10, 0, 0, 2] };
        assert_eq!(solicitation(&arp), Some(expected));
        assert_eq!(solicitation(&arp[..ARP_BYTES - 1]), None);
        arp[21] = 2;
        assert_eq!(solicitation(&arp), None, "a reply");
        let mut ndisc = vec![0; ND_TARGET_END];
        ndisc[12..14].copy_from_slice(&ETHERTYPE_IPV6);
        ndisc[20] = ICMPV6;
        ndisc[ICMPV6_AT] = NEIGHBOR_SOLICITATION;
        assert!(matches!(solicitation(&ndisc), Some(Solicitation::Ndisc { .. })));
        ndisc[ICMPV6_AT] = NEIGHBOR_ADVERTISEMENT;
        assert_eq!(solicitation(&ndisc), None);
    }
}
