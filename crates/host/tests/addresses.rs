//! Addresses that change while connections are open, and fragments, as a peer sees them.

use base::{Duration, Instant};
use outboard_host::{AutoAddrConfig, AutoAddrs, Cidr, NetworkAddrs, SocketError};
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
