//! TAPs in private network namespaces, with the kernel's sockets at the other end.
//!
//! A namespace belongs to the test's thread, so tests run in parallel. If the user is not root,
//! each test runs itself again as root of a user namespace.
#![expect(unsafe_code, reason = "unshare")]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use abi::link::{FramePayload, LinkCaps, RxFrame, TxFrame};
use abi::{Checksum, PacketHeader, PacketPool};
use base::{Duration, Instant};
use bytes::Bytes;

use super::*;
use crate::link::{Link as _, LinkTxStatus};
use crate::notify::Poller;

/// Timeout of socket calls, so that a broken test fails instead of hanging.
const GUARD: std::time::Duration = std::time::Duration::from_secs(30);
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const KERNEL4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// Runs `test` in a new network namespace.
fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        let exe = std::env::current_exe().unwrap();
        let mut again = std::process::Command::new("unshare");
        again.args(["--user", "--map-root-user"]).arg(exe).args(["--exact", name]);
        assert!(again.status().unwrap().success());
        return;
    }
    let thread = std::thread::spawn(|| {
        // SAFETY: no pointers; it moves only this thread, which ends with the test, to a new
        // namespace.
        let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(rc, 0, "unshare: {}", io::Error::last_os_error());
        test();
    });
    thread.join().unwrap();
}

fn config(queues: usize, offloads: bool) -> TapConfig {
    let peer = vec![
        IpPrefix { addr: KERNEL4.into(), prefix: 24 },
        IpPrefix { addr: KERNEL6.into(), prefix: 64 },
    ];
    TapConfig { name: "ob0".into(), queues, steering: None, peer, mtu: None, offloads }
}

/// A TAP, with the learned link address of the kernel's end.
struct TapPeer {
    tap: VnetLink,
    pool: PacketPool,
    kernel_mac: [u8; 6],
}

impl TapPeer {
    fn new(offloads: bool) -> Self {
        let tap = open(&config(1, offloads)).unwrap().remove(0);
        Self { tap, pool: PacketPool::new(4), kernel_mac: [0; 6] }
    }

    /// Returns the next frame that `want` accepts; answers ARP requests meanwhile.
    fn wait_for(&mut self, want: impl Fn(&[u8]) -> bool) -> RxFrame {
        let mut poller = Poller::new();
        poller.add(self.tap.pollable().unwrap());
        loop {
            while let Some(rx) = self.tap.receive(Instant::ZERO, &mut self.pool) {
                let frame = rx.packet.as_slice();
                self.kernel_mac.copy_from_slice(&frame[6..12]);
                if frame[12..14] == [8, 6] && frame[21] == 1 && frame[38..42] == OURS4.octets() {
                    let reply = self.arp_reply();
                    assert_eq!(
                        self.tap.transmit(Instant::ZERO, &mut reply.clone()),
                        LinkTxStatus::Sent
                    );
                } else if want(frame) {
                    return rx;
                }
            }
            let ready = poller.wait(Some(Duration::from_secs(60))).unwrap();
            assert!(ready > 0, "no frame in a minute: the test would hang");
        }
    }

    fn arp_reply(&self) -> TxFrame {
        let mut arp = Vec::new();
        arp.extend(self.kernel_mac);
        arp.extend(OUR_MAC);
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        arp.extend(OUR_MAC);
        arp.extend(OURS4.octets());
        arp.extend(self.kernel_mac);
        arp.extend(KERNEL4.octets());
        TxFrame {
            header: PacketHeader::from_bytes(&arp, 14, 14).unwrap(),
            payload: [].into_iter().collect(),
            segment_size: 0,
            checksum_partial: false,
        }
    }

    /// Returns an IPv4 packet to the kernel, with a partial transport checksum.
    fn packet(&self, protocol: u8, transport: &[u8], payload: &[&[u8]]) -> TxFrame {
        let payload_len: usize = payload.iter().map(|p| p.len()).sum();
        let transport_len = transport.len() + payload_len;
        let mut bytes = Vec::new();
        bytes.extend(self.kernel_mac);
        bytes.extend(OUR_MAC);
        bytes.extend([8, 0, 0x45, 0]);
        // A run above 64 KiB has a length field of zero.
        bytes.extend(u16::try_from(transport_len + 20).unwrap_or(0).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        bytes.extend(OURS4.octets());
        bytes.extend(KERNEL4.octets());
        let sum = !sum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(transport);
        let mut pseudo = [OURS4.octets(), KERNEL4.octets()].concat();
        pseudo.extend([0, protocol]);
        pseudo.extend(u32::try_from(transport_len).unwrap().to_be_bytes());
        let field = 34 + if protocol == 6 { 16 } else { 6 };
        bytes[field..field + 2].copy_from_slice(&self::sum(&pseudo).to_be_bytes());
        let part = |p: &&[u8]| FramePayload::Host(Bytes::copy_from_slice(p));
        TxFrame {
            header: PacketHeader::from_bytes(&bytes, 14, 34).unwrap(),
            payload: payload.iter().map(part).collect(),
            segment_size: 0,
            checksum_partial: true,
        }
    }
}

/// Returns the ones' complement sum of RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let mut total: u32 = bytes.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).unwrap()
}

fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn be32(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

fn is_udp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 17
}

fn is_tcp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 6
}

#[test]
fn datagrams_cross_both_ways() {
    in_namespace("tap::tests::datagrams_cross_both_ways", || {
        let mut peer = TapPeer::new(true);
        let caps = peer.tap.capabilities();
        let all = LinkCaps { segmentation: true, checksum: true, mtu: 1500, ..caps };
        assert_eq!(caps, all);
        let socket = UdpSocket::bind((KERNEL4, 5000)).unwrap();
        socket.set_read_timeout(Some(GUARD)).unwrap();
        socket.send_to(b"from the kernel", (OURS4, 6000)).unwrap();
        let got = peer.wait_for(is_udp);
        assert_eq!(&got.packet.as_slice()[42..], b"from the kernel");
        assert_eq!((got.checksum, got.segment_size), (Checksum::Partial, 0));

        let mut udp = [6000_u16, 5000, 8 + 10, 0].map(u16::to_be_bytes).concat();
        let reply = peer.packet(17, &udp, &[b"in ", b"", b"3 parts"]);
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut reply.clone()), LinkTxStatus::Sent);
        let mut buf = [0; 100];
        let (len, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..len], from), (&b"in 3 parts"[..], SocketAddr::from((OURS4, 6000))));

        // More slices than are gathered without an allocation.
        let parts: Vec<[u8; 1]> = (0..100).map(|i| [i]).collect();
        udp[4..6].copy_from_slice(&108_u16.to_be_bytes());
        let parts: Vec<&[u8]> = parts.iter().map(|p| &p[..]).collect();
        let long = peer.packet(17, &udp, &parts);
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut long.clone()), LinkTxStatus::Sent);
        assert_eq!(socket.recv(&mut buf).unwrap(), 100);
        assert!(buf.iter().copied().eq(0..100));
        let c = peer.tap.counters();
        assert_eq!((c.link_tx_frames, c.link_tx_runs, c.link_tx_errors), (3, 0, 0));
    });
}

/// A run of datagrams is sent in one write, and received as datagrams by a socket without UDP_GRO.
#[test]
fn runs_of_datagrams_go_out() {
    in_namespace("tap::tests::runs_of_datagrams_go_out", || {
        let mut peer = TapPeer::new(true);
        let socket = UdpSocket::bind((KERNEL4, 5000)).unwrap();
        socket.set_read_timeout(Some(GUARD)).unwrap();
        // The kernel must resolve our address before it accepts our packets.
        socket.send_to(b"?", (OURS4, 9)).unwrap();
        peer.wait_for(is_udp);
        let content: Vec<u8> = (0..20_001_u32).map(|i| i.to_be_bytes()[3]).collect();
        let udp = [6000_u16, 5000, 8 + 20_001, 0].map(u16::to_be_bytes).concat();
        let mut run = peer.packet(17, &udp, &[&content[..3000], &content[3000..]]);
        run.segment_size = 1400;
        if !peer.tap.capabilities().udp_segmentation {
            // The kernel must be older than Linux 6.2, so `run_bytes_max` must not recognize 6.3.
            assert!(run_bytes_max() < 65_536, "this kernel takes runs of datagrams");
            return;
        }
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut run), LinkTxStatus::Sent);
        let mut buf = [0; 2000];
        for datagram in content.chunks(1400) {
            let (len, from) = socket.recv_from(&mut buf).unwrap();
            assert_eq!(from, SocketAddr::from((OURS4, 6000)));
            assert!(&buf[..len] == datagram, "{len} bytes");
        }
        // The other frame is the ARP reply.
        let c = peer.tap.counters();
        assert_eq!((c.link_tx_frames, c.link_tx_runs, c.link_tx_errors), (2, 1, 0));
    });
}

#[test]
fn runs_of_segments_cross_both_ways() {
    in_namespace("tap::tests::runs_of_segments_cross_both_ways", || {
        let mut peer = TapPeer::new(true);
        let listener = TcpListener::bind((KERNEL4, 80)).unwrap();
        // The kernel must resolve our address before it can answer a SYN.
        UdpSocket::bind((KERNEL4, 0)).unwrap().send_to(b"?", (OURS4, 9)).unwrap();
        peer.wait_for(is_udp);
        let tcp = |seq: u32, ack: u32, flags: u8| {
            let mut t = [9000_u16, 80].map(u16::to_be_bytes).concat();
            t.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
            t.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            t
        };
        let mut syn = tcp(1000, 0, 0x02);
        syn[12] = 0x60;
        syn.extend([2, 4, 5, 0xb4]);
        let syn = peer.packet(6, &syn, &[]);
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut syn.clone()), LinkTxStatus::Sent);
        let syn_ack = peer.wait_for(|f| is_tcp(f) && f[47] == 0x12);
        let theirs = be32(syn_ack.packet.as_slice(), 38).wrapping_add(1);

        let data: Vec<u8> = (0..20_000_u32).map(|i| i.to_be_bytes()[3]).collect();
        let mut run = peer.packet(6, &tcp(1001, theirs, 0x18), &[&data[..7_000], &data[7_000..]]);
        run.segment_size = 1460;
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut run), LinkTxStatus::Sent);
        let mut poller = Poller::new();
        poller.add(listener.as_raw_fd());
        assert_eq!(poller.wait(Some(Duration::from_secs(30))).unwrap(), 1, "no connection");
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(GUARD)).unwrap();
        let mut got = vec![0; 20_000];
        stream.read_exact(&mut got).unwrap();
        assert!(got == data, "the kernel puts the run together again");

        let long = [data.as_slice(); 10].concat();
        let whole = run_bytes_max() as usize > long.len();
        let mut sent = 0;
        for piece in long.chunks(if whole { long.len() } else { 50_000 }) {
            let seq = 21_001 + u32::try_from(sent).unwrap();
            let mut run = peer.packet(6, &tcp(seq, theirs, 0x18), &[piece]);
            run.segment_size = 1460;
            assert_eq!(peer.tap.transmit(Instant::ZERO, &mut run), LinkTxStatus::Sent);
            let mut got = vec![0; piece.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(got == piece, "and a run above 64 KiB, where it takes them");
            sent += piece.len();
        }

        stream.write_all(&data[..10_000]).unwrap();
        let run = peer.wait_for(|f| is_tcp(f) && be16(f, 16) > 1500);
        assert_eq!((run.checksum, run.segment_size), (Checksum::Partial, 1460));
        let payload = &run.packet.as_slice()[54..];
        assert!(payload.len() > 1460 && payload == &data[..payload.len()]);
        let c = peer.tap.counters();
        let runs = if whole { 2 } else { 5 };
        assert_eq!((c.link_tx_runs, c.link_rx_runs, c.link_rx_malformed), (runs, 1, 0));
        assert_eq!((c.link_tx_errors, c.link_tx_too_long), (0, 0));
    });
}

#[test]
fn without_offloads_every_packet_is_whole() {
    in_namespace("tap::tests::without_offloads_every_packet_is_whole", || {
        let mut peer = TapPeer::new(false);
        assert!(!peer.tap.capabilities().segmentation && !peer.tap.capabilities().checksum);
        let socket = UdpSocket::bind((KERNEL4, 5000)).unwrap();
        socket.send_to(b"sum me", (OURS4, 6000)).unwrap();
        let got = peer.wait_for(is_udp);
        assert_eq!(got.checksum, Checksum::Unchecked);
        let frame = got.packet.as_slice();
        let mut pseudo = frame[26..34].to_vec();
        pseudo.extend([0, 17]);
        pseudo.extend_from_slice(&frame[38..40]);
        pseudo.extend_from_slice(&frame[34..]);
        assert_eq!(sum(&pseudo), 0xffff, "the kernel has filled in the checksum");
    });
}

#[test]
fn opens_once_and_goes_away() {
    in_namespace("tap::tests::opens_once_and_goes_away", || {
        for queues in [1, 3] {
            let taps = open(&config(queues, true)).unwrap();
            assert_eq!(taps.len(), queues);
            let again = open(&config(queues, true)).unwrap_err();
            assert!(matches!(again, OpenLinkError::Busy { .. }), "{again:?}");
            assert_eq!(netlink::interfaces_with_address(KERNEL4.into()).unwrap(), ["ob0"]);
            assert_eq!(netlink::interfaces_with_address(KERNEL6.into()).unwrap(), ["ob0"]);
            // Usable at once, since duplicate address detection is off.
            UdpSocket::bind((KERNEL6, 5000)).unwrap();
            drop(taps);
            assert!(netlink::interfaces_with_address(KERNEL4.into()).unwrap().is_empty());
        }
    });
}

#[test]
fn errors_say_what_is_wrong() {
    in_namespace("tap::tests::errors_say_what_is_wrong", || {
        let _tap = open(&TapConfig { mtu: Some(9000), ..config(1, true) }).unwrap();
        assert_eq!(_tap[0].capabilities().mtu, 9000);
        let other = TapConfig { name: "ob1".into(), ..config(1, true) };
        match open(&other).unwrap_err() {
            OpenLinkError::AddressInUse { addr, interface } => {
                assert_eq!((addr, interface.as_str()), (IpAddr::from(KERNEL4), "ob0"));
            }
            error => panic!("{error:?}"),
        }
        let long = "x".repeat(16);
        for name in ["", ".", "..", "a b", "a/b", "tap%d", "a\0b", "lo", &long] {
            let bad = TapConfig { name: name.into(), peer: vec![], ..config(1, true) };
            let error = open(&bad).unwrap_err();
            assert!(matches!(error, OpenLinkError::BadName { .. }), "{name:?}: {error:?}");
        }
    });
}

#[test]
fn without_the_capability_it_says_so() {
    in_namespace("tap::tests::without_the_capability_it_says_so", || {
        // Version 3 of the header, for this thread; no effective, permitted or inheritable
        // capabilities, in two words each.
        let (head, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        // SAFETY: both arrays have the layout that capset(2) reads; it changes only this thread,
        // which ends here.
        let rc = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) };
        assert_eq!(rc, 0);
        let error = open(&config(1, true)).unwrap_err();
        assert!(matches!(error, OpenLinkError::NoPermission { .. }), "{error:?}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        assert!(!error.to_string().contains('\n'));
    });
}

#[test]
fn a_frame_that_cannot_be_described_is_refused() {
    in_namespace("tap::tests::a_frame_that_cannot_be_described_is_refused", || {
        let mut peer = TapPeer::new(true);
        let icmp = peer.packet(1, &[8, 0, 0, 0, 0, 0, 0, 0], &[]);
        assert_eq!(peer.tap.transmit(Instant::ZERO, &mut icmp.clone()), LinkTxStatus::Failed);
        assert_eq!(peer.tap.counters().link_tx_refused, 1);
    });
}
