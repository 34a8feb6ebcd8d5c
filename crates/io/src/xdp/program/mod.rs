//! The XDP program: redirects the frames of the stack to the sockets, and passes all others to the
//! kernel.
//!
//! It is generated for the addresses and ports of one run, so it needs no map but that of the
//! sockets. If ports are added, a new program replaces it. The source is this file, instruction by
//! instruction; the tests run the instructions in the kernel and compare each verdict with a
//! function in Rust (`reference`).
//!
//! Frames of the stack, if it has addresses of its own:
//! - ARP packets whose target protocol address is one of them;
//! - IPv4 and IPv6 packets to one of them;
//! - neighbor solicitations (RFC 4861) for one of them, which are multicast.
//!
//! Frames of the stack, if it shares the kernel's addresses ([`SharedPorts`]): unfragmented TCP
//! segments and UDP datagrams to these addresses and one of the ports, and ICMP errors about
//! packets from one of the ports. ARP, neighbor discovery and echo requests stay with the kernel.
//!
//! Frames with VLAN tag, fragments to a shared address, and IPv6 extension headers before a
//! transport header on a shared address are the kernel's.
//!
//! A frame of the stack on a queue without socket is dropped: the kernel would answer it by a
//! reset.

mod assembler;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use crate::bpf::BpfInstruction;
use assembler::{Assembler, Condition, Label, LoadSize, Register};

use Condition::{Above, AnyBit, Below, Equal, NotEqual};
use LoadSize::{Byte, Half, Word};
use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8};

/// Ports of a stack that shares the addresses of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct SharedPorts {
    /// Ports of listeners, of TCP and UDP. At most [`super::ListenerPorts::MAX`].
    pub(crate) listeners: Vec<u16>,
    /// Local ports of active opens.
    pub(crate) active: RangeInclusive<u16>,
}

/// The frames to redirect.
#[derive(Clone, Debug)]
pub(crate) struct RedirectRules {
    /// Addresses of the stack.
    pub(crate) addrs: Vec<IpAddr>,
    /// Ports, if the addresses are the kernel's too.
    pub(crate) shared: Option<SharedPorts>,
}

/// Actions of XDP (`enum xdp_action`).
pub(crate) const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
pub(crate) const XDP_TX: i32 = 3;
/// Number of the helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;
/// Offsets in a frame: the IP header, and the transport header after an IPv4 header without
/// options, and after the fixed IPv6 header.
const L3: i16 = 14;
const ARP_END: i16 = L3 + 28;
const IPV4_END: i16 = L3 + 20;
const IPV6_END: i16 = L3 + 40;
/// Bytes that are read of a transport header: ports, or type and code of ICMP.
const L4_BYTES: i32 = 8;
/// Offset of the packet in an ICMP error.
const ICMP_INNER: i16 = 8;
const PROTOCOL_ICMP: i32 = 1;
const PROTOCOL_TCP: i32 = 6;
const PROTOCOL_UDP: i32 = 17;
const PROTOCOL_ICMPV6: i32 = 58;
const NEIGHBOR_SOLICITATION: i32 = 135;

/// Labels that all parts of the program refer to.
#[derive(Clone, Copy, Debug)]
struct Exits {
    redirect: Label,
    pass: Label,
}

/// Returns the program for `rules`, which redirects to the sockets in the XSKMAP with this file
/// descriptor.
///
/// Registers: R6 is the context, R2 the frame's begin, R3 its end. After an IP header, R4 is the
/// transport header and R7 its protocol.
pub(crate) fn assemble(rules: &RedirectRules, xsk_map: i32) -> Vec<BpfInstruction> {
    let mut asm = Assembler::default();
    let exits = Exits { redirect: asm.label(), pass: asm.label() };
    let (arp, ipv4, ipv6) = (asm.label(), asm.label(), asm.label());
    asm.copy(R6, R1);
    asm.load(Word, R2, R6, MD_DATA);
    asm.load(Word, R3, R6, MD_DATA_END);
    require(&mut asm, L3, exits.pass);
    asm.load(Half, R5, R2, 12);
    asm.jump_if(R5, Equal, be16(0x0800), ipv4);
    asm.jump_if(R5, Equal, be16(0x86dd), ipv6);
    asm.jump_if(R5, Equal, be16(0x0806), arp);
    asm.jump(exits.pass);
    let transport = asm.label();
    asm.place(arp);
    emit_arp(&mut asm, rules, exits);
    asm.place(ipv4);
    emit_ipv4(&mut asm, rules, transport, exits);
    asm.place(ipv6);
    emit_ipv6(&mut asm, rules, transport, exits);
    if let Some(shared) = &rules.shared {
        if asm.place_if_used(transport) {
            emit_transport(&mut asm, shared, exits);
        }
    }
    if asm.place_if_used(exits.redirect) {
        asm.load(Word, R2, R6, MD_RX_QUEUE);
        asm.load_map(R1, xsk_map);
        // The action if there is no socket for the queue.
        asm.set(R3, XDP_DROP);
        asm.call(REDIRECT_MAP);
        asm.exit();
    }
    asm.place(exits.pass);
    asm.set(R0, XDP_PASS);
    asm.exit();
    asm.finish()
}

/// Returns a program with one action for all frames.
pub(crate) fn assemble_fixed(action: i32) -> Vec<BpfInstruction> {
    let mut asm = Assembler::default();
    asm.set(R0, action);
    asm.exit();
    asm.finish()
}

/// Jumps to `otherwise` if the frame has fewer than `len` bytes.
fn require(asm: &mut Assembler, len: i16, otherwise: Label) {
    asm.copy(R4, R2);
    asm.add(R4, len.into());
    asm.jump_if_beyond(R4, R3, otherwise);
}

/// ARP (RFC 826) of IPv4 over Ethernet, whose target is ours.
fn emit_arp(asm: &mut Assembler, rules: &RedirectRules, exits: Exits) {
    if rules.shared.is_none() {
        require(asm, ARP_END, exits.pass);
        asm.load(Half, R5, R2, L3 + 2);
        asm.jump_if(R5, NotEqual, be16(0x0800), exits.pass);
        // Lengths of the addresses.
        asm.load(Half, R5, R2, L3 + 4);
        asm.jump_if(R5, NotEqual, be16(0x0604), exits.pass);
        asm.load(Word, R5, R2, L3 + 24);
        for addr in ipv4_of(rules) {
            asm.jump_if(R5, Equal, i32::from_ne_bytes(addr.octets()), exits.redirect);
        }
    }
    asm.jump(exits.pass);
}

fn emit_ipv4(asm: &mut Assembler, rules: &RedirectRules, transport: Label, exits: Exits) {
    let ours = if rules.shared.is_some() { asm.label() } else { exits.redirect };
    require(asm, IPV4_END, exits.pass);
    asm.load(Word, R5, R2, L3 + 16);
    for addr in ipv4_of(rules) {
        asm.jump_if(R5, Equal, i32::from_ne_bytes(addr.octets()), ours);
    }
    asm.jump(exits.pass);
    if rules.shared.is_none() || !asm.place_if_used(ours) {
        return;
    }
    // MF flag or fragment offset: the ports are in the first fragment only.
    asm.load(Half, R5, R2, L3 + 6);
    asm.jump_if(R5, AnyBit, be16(0x3fff), exits.pass);
    asm.load(Byte, R7, R2, L3 + 9);
    // The header's length, in units of four bytes.
    asm.load(Byte, R5, R2, L3);
    asm.and(R5, 0x0f);
    asm.shift_left(R5, 2);
    asm.jump_if(R5, Below, 20, exits.pass);
    asm.copy(R4, R2);
    asm.add_register(R4, R5);
    asm.add(R4, L3.into());
    asm.jump(transport);
}

fn emit_ipv6(asm: &mut Assembler, rules: &RedirectRules, transport: Label, exits: Exits) {
    let ours = if rules.shared.is_some() { asm.label() } else { exits.redirect };
    require(asm, IPV6_END, exits.pass);
    for addr in ipv6_of(rules) {
        jump_if_ipv6(asm, L3 + 24, addr, ours);
    }
    if rules.shared.is_none() {
        asm.load(Byte, R5, R2, L3 + 6);
        asm.jump_if(R5, NotEqual, PROTOCOL_ICMPV6, exits.pass);
        require(asm, IPV6_END + 24, exits.pass);
        asm.load(Byte, R5, R2, IPV6_END);
        asm.jump_if(R5, NotEqual, NEIGHBOR_SOLICITATION, exits.pass);
        for addr in ipv6_of(rules) {
            jump_if_ipv6(asm, IPV6_END + 8, addr, exits.redirect);
        }
    }
    asm.jump(exits.pass);
    if rules.shared.is_none() || !asm.place_if_used(ours) {
        return;
    }
    asm.load(Byte, R7, R2, L3 + 6);
    asm.copy(R4, R2);
    asm.add(R4, IPV6_END.into());
    asm.jump(transport);
}

/// Jumps to `equal` if the IPv6 address at an offset of the frame is `addr`.
fn jump_if_ipv6(asm: &mut Assembler, at: i16, addr: Ipv6Addr, equal: Label) {
    let different = asm.label();
    let octets = addr.octets();
    for (offset, word) in (at..).step_by(4).zip(octets.chunks_exact(4)) {
        asm.load(Word, R5, R2, offset);
        let word = i32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        asm.jump_if(R5, NotEqual, word, different);
    }
    asm.jump(equal);
    asm.place(different);
}

/// TCP, UDP and ICMP errors to a shared address.
fn emit_transport(asm: &mut Assembler, shared: &SharedPorts, exits: Exits) {
    asm.copy(R8, R4);
    asm.add(R8, L4_BYTES);
    asm.jump_if_beyond(R8, R3, exits.pass);
    let (icmp, icmpv6, by_port) = (asm.label(), asm.label(), asm.label());
    asm.jump_if(R7, Equal, PROTOCOL_ICMP, icmp);
    asm.jump_if(R7, Equal, PROTOCOL_ICMPV6, icmpv6);
    // The destination port, which TCP and UDP have at the same offset.
    asm.load(Half, R5, R4, 2);
    asm.jump(by_port);
    asm.place(icmp);
    emit_icmp(asm, by_port, exits);
    asm.place(icmpv6);
    emit_icmpv6(asm, by_port, exits);
    asm.place(by_port);
    let has_ports = asm.label();
    asm.jump_if(R7, Equal, PROTOCOL_TCP, has_ports);
    asm.jump_if(R7, NotEqual, PROTOCOL_UDP, exits.pass);
    asm.place(has_ports);
    asm.convert_be16(R5);
    for port in &shared.listeners {
        asm.jump_if(R5, Equal, i32::from(*port), exits.redirect);
    }
    asm.jump_if(R5, Below, i32::from(*shared.active.start()), exits.pass);
    asm.jump_if(R5, Above, i32::from(*shared.active.end()), exits.pass);
    asm.jump(exits.redirect);
}

/// ICMP errors (RFC 792): destination unreachable, time exceeded, parameter problem. Continues with
/// the protocol and the source port of the packet in it, which we have sent without options.
fn emit_icmp(asm: &mut Assembler, by_port: Label, exits: Exits) {
    let error = asm.label();
    asm.load(Byte, R5, R4, 0);
    for kind in [3, 11, 12] {
        asm.jump_if(R5, Equal, kind, error);
    }
    asm.jump(exits.pass);
    asm.place(error);
    asm.copy(R8, R4);
    asm.add(R8, i32::from(ICMP_INNER) + 20 + 4);
    asm.jump_if_beyond(R8, R3, exits.pass);
    asm.load(Byte, R5, R4, ICMP_INNER);
    asm.jump_if(R5, NotEqual, 0x45, exits.pass);
    asm.load(Byte, R7, R4, ICMP_INNER + 9);
    asm.load(Half, R5, R4, ICMP_INNER + 20);
    asm.jump(by_port);
}

/// ICMPv6 errors (RFC 4443): types 1 to 4. Continues as [`emit_icmp`].
fn emit_icmpv6(asm: &mut Assembler, by_port: Label, exits: Exits) {
    asm.load(Byte, R5, R4, 0);
    asm.jump_if(R5, Below, 1, exits.pass);
    asm.jump_if(R5, Above, 4, exits.pass);
    asm.copy(R8, R4);
    asm.add(R8, i32::from(ICMP_INNER) + 40 + 4);
    asm.jump_if_beyond(R8, R3, exits.pass);
    asm.load(Byte, R7, R4, ICMP_INNER + 6);
    asm.load(Half, R5, R4, ICMP_INNER + 40);
    asm.jump(by_port);
}

/// Returns the constant that equals a 16-bit number of the network, loaded in native byte order.
fn be16(number: u16) -> i32 {
    u16::from_ne_bytes(number.to_be_bytes()).into()
}

fn ipv4_of(rules: &RedirectRules) -> impl Iterator<Item = Ipv4Addr> + '_ {
    rules.addrs.iter().filter_map(|addr| match addr {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    })
}

fn ipv6_of(rules: &RedirectRules) -> impl Iterator<Item = Ipv6Addr> + '_ {
    rules.addrs.iter().filter_map(|addr| match addr {
        IpAddr::V6(v6) => Some(*v6),
        IpAddr::V4(_) => None,
    })
}
