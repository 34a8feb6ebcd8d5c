//! The program in the kernel (`BPF_PROG_TEST_RUN`) against the reference function.
//!
//! Without a socket in the map a redirected frame has the verdict DROP, and no other frame has.
//! Loading a program needs CAP_BPF in the first user namespace; without it the tests end.

use std::net::IpAddr;

use proptest::prelude::*;

use super::reference::is_redirected;
use super::*;
use crate::bpf::BpfProgram;
use crate::xdp::attach::{self, XskMap};

const OURS4: [u8; 4] = [10, 77, 0, 2];
const OTHER4: [u8; 4] = [10, 77, 0, 3];
const OURS6: &str = "fd77::2";
const OTHER6: &str = "fd77::1:0:2";

fn rules(shared: bool) -> RedirectRules {
    let ports = SharedPorts { listeners: vec![80, 443], active: 61000..=65535 };
    RedirectRules {
        addrs: vec![OURS4.into(), "192.0.2.9".parse().unwrap(), OURS6.parse().unwrap()],
        shared: shared.then_some(ports),
    }
}

/// Loads the program for `rules`; `None` without the privilege.
fn load(rules: &RedirectRules) -> Option<BpfProgram> {
    let map = match XskMap::new(1) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return None,
        map => map.unwrap(),
    };
    let (program, log) = attach::load(&assemble(rules, map.raw()), false);
    Some(program.unwrap_or_else(|e| panic!("{e}: {log}")))
}

fn check(program: &BpfProgram, rules: &RedirectRules, frame: &[u8]) -> bool {
    let verdict = program.test_run(frame).unwrap();
    let expected = is_redirected(rules, frame);
    let action = if expected { XDP_DROP } else { XDP_PASS };
    assert_eq!(i32::try_from(verdict), Ok(action), "{frame:02x?}");
    expected
}

/// Choices from which a frame is made.
#[derive(Clone, Copy, Debug)]
struct FrameShape {
    ours: bool,
    /// Of ICMP, also the protocol of the packet in it.
    protocol: u8,
    inner: u8,
    icmp_type: u8,
    port: u16,
    options: u8,
    fragment: u16,
}

fn shapes() -> impl Strategy<Value = FrameShape> {
    let ports = prop_oneof![Just(80), Just(443), Just(22), Just(61000), Just(60999), Just(65535)];
    let fragments =
        prop_oneof![4 => Just(0_u16), 1 => Just(0x4000), 1 => Just(0x2000), 1 => Just(7)];
    (
        any::<bool>(),
        prop::sample::select(vec![1_u8, 6, 17, 58, 132]),
        prop::sample::select(vec![6_u8, 17, 1]),
        prop::sample::select(vec![0_u8, 1, 2, 3, 4, 5, 8, 11, 12, 128, 135, 136]),
        ports,
        prop::sample::select(vec![5_u8, 5, 5, 6, 15, 4]),
        fragments,
    )
        .prop_map(|(ours, protocol, inner, icmp_type, port, options, fragment)| FrameShape {
            ours,
            protocol,
            inner,
            icmp_type,
            port,
            options,
            fragment,
        })
}

fn arp(shape: &FrameShape) -> Vec<u8> {
    let mut frame = vec![0; 42];
    frame[12..14].copy_from_slice(&[8, 6]);
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame[38..42].copy_from_slice(if shape.ours { &OURS4 } else { &OTHER4 });
    frame
}

fn ipv4_packet(shape: &FrameShape) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x40 | shape.options;
    frame[20..22].copy_from_slice(&shape.fragment.to_be_bytes());
    frame[23] = shape.protocol;
    frame[30..34].copy_from_slice(if shape.ours { &OURS4 } else { &OTHER4 });
    frame.resize(14 + usize::from(shape.options) * 4, 0);
    let mut inner = vec![0; 20];
    inner[0] = 0x45;
    inner[9] = shape.inner;
    frame.extend(transport(shape, &inner));
    frame
}

fn ipv6_packet(shape: &FrameShape) -> Vec<u8> {
    let addr: Ipv6Addr = if shape.ours { OURS6 } else { OTHER6 }.parse().unwrap();
    let mut frame = vec![0; 14 + 40];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14] = 0x60;
    frame[20] = shape.protocol;
    // Neighbor solicitations are multicast.
    if shape.protocol != 58 || shape.icmp_type < 128 {
        frame[38..54].copy_from_slice(&addr.octets());
    }
    let mut inner = vec![0; 40];
    inner[6] = shape.inner;
    let mut packet = transport(shape, &inner);
    if shape.icmp_type >= 128 && shape.protocol == 58 {
        packet[8..24].copy_from_slice(&addr.octets());
    }
    frame.extend(packet);
    frame
}

/// Returns a transport packet; that of an ICMP error contains the IP header `inner` and a port.
fn transport(shape: &FrameShape, inner: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 8];
    if [1, 58].contains(&shape.protocol) {
        packet[0] = shape.icmp_type;
        packet.extend(inner);
        packet.extend(shape.port.to_be_bytes());
    } else {
        packet[2..4].copy_from_slice(&shape.port.to_be_bytes());
    }
    packet.resize(packet.len() + 20, 0);
    packet
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let whole = (shapes(), 0..5_u8).prop_map(|(shape, kind)| match kind {
        0 => arp(&shape),
        1 | 2 => ipv4_packet(&shape),
        _ => ipv6_packet(&shape),
    });
    // Some frames are cut, and some have a changed byte.
    (whole, any::<prop::sample::Index>(), 0..6_u8, any::<u8>()).prop_map(
        |(mut frame, at, how, byte)| {
            let at = at.index(frame.len());
            match how {
                0 => frame.truncate(at.max(14)),
                1 => frame[at] = byte,
                _ => {}
            }
            frame
        },
    )
}

#[test]
fn verdicts_are_those_of_the_reference() {
    for shared in [false, true] {
        let rules = rules(shared);
        let Some(program) = load(&rules) else { return };
        let mut redirected = 0;
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 4000,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let seen = std::cell::RefCell::new(&mut redirected);
        let test = |frame: Vec<u8>| {
            **seen.borrow_mut() += u32::from(check(&program, &rules, &frame));
            Ok(())
        };
        runner.run(&frames(), test).unwrap();
        assert!(redirected > 100 && redirected < 3700, "{redirected} of 4000");
    }
}

#[test]
fn each_rule_redirects() {
    let shape = FrameShape {
        ours: true,
        protocol: 6,
        inner: 17,
        icmp_type: 3,
        port: 443,
        options: 5,
        fragment: 0x4000,
    };
    let icmp = FrameShape { protocol: 1, ..shape };
    let solicitation = FrameShape { protocol: 58, icmp_type: 135, ..shape };
    let own = [arp(&shape), ipv4_packet(&shape), ipv6_packet(&shape), ipv6_packet(&solicitation)];
    let with_options = FrameShape { options: 15, port: 61000, ..shape };
    let icmpv6 = FrameShape { protocol: 58, icmp_type: 2, ..shape };
    let ssh = FrameShape { port: 22, ..shape };
    let shared = [ipv4_packet(&with_options), ipv4_packet(&icmp), ipv6_packet(&icmpv6)];
    let of_kernel = [arp(&shape), ipv4_packet(&ssh), ipv6_packet(&solicitation)];
    let (own_rules, shared_rules) = (rules(false), rules(true));
    let Some(program) = load(&own_rules) else { return };
    for frame in &own {
        assert!(check(&program, &own_rules, frame), "{frame:02x?}");
    }
    let mut tagged = own[1].clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert!(!check(&program, &own_rules, &tagged), "VLAN");
    let program = load(&shared_rules).expect("loaded before");
    for frame in &shared {
        assert!(check(&program, &shared_rules, frame), "{frame:02x?}");
    }
    for frame in &of_kernel {
        assert!(!check(&program, &shared_rules, frame), "{frame:02x?}");
    }
}

/// The largest program: all ports, and two addresses of each family.
#[test]
fn largest_program_is_accepted() {
    let addrs = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"];
    let addrs = addrs.map(|addr| addr.parse::<IpAddr>().unwrap()).to_vec();
    let listeners = (1..=256).collect();
    let shared = Some(SharedPorts { listeners, active: 61000..=65535 });
    let program = load(&RedirectRules { addrs, shared });
    assert!(program.is_none_or(|program| program.test_run(&[0; 60]).unwrap() == 2));
}

/// Programs without addresses of a family have no instructions that are never reached.
#[test]
fn programs_for_one_family_are_accepted() {
    for addrs in [&["10.0.0.1"][..], &["fd00::1"], &[]] {
        let addrs: Vec<IpAddr> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
        for shared in [None, rules(true).shared] {
            let _ = load(&RedirectRules { addrs: addrs.clone(), shared });
        }
    }
}
