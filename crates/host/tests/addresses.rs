//! Addresses that change while connections are open, and fragments, as a peer sees them.

use core::net::IpAddr;

use abi::attach::{AddressClaim, PortClaim};
use abi::{Capabilities, Event, Op, Refusal};
use base::{Duration, Instant};
use outboard_host::{AutoAddrConfig, AutoAddrs, Cidr, Host, HostConfig, NetworkAddrs, SocketError};
use testkit::{HOST, HOST_MAC, HOST_V6, ScriptedTcpPeer, seg};

fn network(addr: [u8; 4]) -> NetworkAddrs {
    let v4 = Cidr { addr: addr.into(), prefix_len: 24 };
    let v6 = Cidr { addr: HOST_V6, prefix_len: 64 };
    NetworkAddrs { addrs: vec![v4, v6], gateways: Vec::new(), mtu: 1500 }
}

fn now(t: &ScriptedTcpPeer) -> Instant {
    // Tests begin at this time of the host.
    Instant::from_millis(1_000_000) + Duration::from_millis(t.ms())
}

/// The peer learns at once that the address is gone, by a reset from that address.
#[test]
fn connections_of_a_lost_address_are_reset() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(100);
    t.take("data");
    t.expect_counters(
        |t| {
            let at = now(t);
            t.host.set_addrs(at, &network([10, 77, 0, 9]));
            t.pump();
        },
        &[("tcp_address_lost", 1), ("tcp_estab_resets", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK seq 101 ack 1));
    assert_eq!(t.error(), Some(SocketError::AddressLost));
    assert!(!t.host.is_ours(HOST) && t.host.is_ours([10, 77, 0, 9].into()));
    t.expect_counters(|t| t.send(seg!(ACK seq 1 ack 101)), &[("received_not_ours", 1)]);
}

/// A change of another address, of the MTU or of a gateway leaves connections alone.
#[test]
fn connections_of_a_kept_address_continue() {
    let mut t = ScriptedTcpPeer::server().established();
    let mut other = network([10, 77, 0, 2]);
    other.addrs.push("10.99.0.1/8".parse().unwrap());
    other.mtu = 1400;
    let at = now(&t);
    t.expect_counters(
        |t| {
            t.host.set_addrs(at, &other);
            t.pump();
        },
        &[],
    );
    t.app_write_zeros(10);
    t.expect(seg!(ACK PSH seq 1 len 10));
    assert_eq!((t.error(), t.host.mtu()), (None, 1400));
}

/// A host above a device of several programs claims an address before a frame is from there, and
/// tells the neighbors where its addresses are, also after a reset.
#[test]
fn new_addresses_are_claimed_and_announced() {
    let addrs = vec!["10.77.0.2/24".parse().unwrap(), Cidr { addr: HOST_V6, prefix_len: 64 }];
    let claimed = vec![[10, 77, 0, 2].into(), HOST_V6];
    let claim =
        AddressClaim { automatic: true, ..AddressClaim::new(claimed.into(), PortClaim::All) };
    let claim_of_host = Some(claim.clone());
    let config = HostConfig { addrs, announces: true, claim: claim_of_host, ..Default::default() };
    let capabilities = Capabilities::without_engines(HOST_MAC, 1500, 1448, Refusal::Disabled);
    let mut host = Host::new(config, &capabilities, 1);
    let now = Instant::from_millis(1);
    let ops = |host: &mut Host| std::iter::from_fn(|| host.poll_op(now)).collect::<Vec<_>>();
    let sent = |ops: &[Op]| {
        let headers = ops.iter().filter_map(|op| match op {
            Op::Transmit(transmit) => Some(transmit.header.as_slice().to_vec()),
            _ => None,
        });
        headers.collect::<Vec<_>>()
    };
    let is_announcement = |frame: &[u8], addr: [u8; 4]| {
        frame[..6] == [0xff; 6] && frame[28..32] == addr && frame[38..42] == addr
    };
    let first = sent(&ops(&mut host));
    assert!(first.len() == 2 && is_announcement(&first[0], [10, 77, 0, 2]), "{first:x?}");
    let (IpAddr::V6(v6), group) = (HOST_V6, [0x33, 0x33, 0, 0, 0, 1]) else { panic!() };
    assert_eq!((&first[1][..6], &first[1][62..78]), (&group[..], &v6.octets()[..]));
    assert_eq!((first[1][54], first[1][58]), (136, 0x20), "unsolicited, and overrides");
    host.handle_event(now, Event::Reset);
    assert_eq!(sent(&ops(&mut host)), first);
    host.set_addrs(now, &network([10, 77, 0, 9]));
    let changed = ops(&mut host);
    let Op::ExtendClaim(asked) = &changed[0] else { panic!("{changed:?}") };
    assert_eq!(Some(&**asked), claim.with_addrs([[10, 77, 0, 9].into()]).as_ref());
    assert!(is_announcement(&sent(&changed)[0], [10, 77, 0, 9]), "{changed:x?}");
    host.set_addrs(now, &network([10, 77, 0, 2]));
    let back = ops(&mut host);
    assert!(!back.iter().any(|op| matches!(op, Op::ExtendClaim(_))), "it is claimed: {back:?}");
    assert_eq!(sent(&back), first);
}

/// The host runs the clients with its own timers, and ends them with itself.
#[test]
fn the_host_runs_the_clients() {
    let mut t = ScriptedTcpPeer::server();
    let at = now(&t);
    let fixed = network([10, 77, 0, 2]);
    let config =
        AutoAddrConfig { dhcp: true, slaac: false, mac: HOST_MAC, fixed, secret: (1, 2), seed: 3 };
    t.host.set_auto_addrs(at, AutoAddrs::new(config));
    t.after_ms(1);
    let discover = t.non_tcp_frames.pop_front().expect("a DISCOVER");
    assert_eq!((&discover[..6], discover[23]), (&[0xff; 6][..], 17));
    assert_eq!(discover[34..38], [0, 68, 0, 67]);
    assert_eq!(t.count("dhcp_discovers"), 1);
    t.after_ms(6_000);
    assert_eq!(t.count("dhcp_discovers"), 2, "sent again");
    t.host.end(now(&t));
    assert_eq!(t.count("dhcp_releases"), 0, "there is no lease");
}
