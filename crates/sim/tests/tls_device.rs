//! TLS between two hosts with real devices, record by record: the reaction to forged, repeated and
//! lost records on a link that alters, duplicates and drops the frames that a test chooses.

use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use abi::crypto::{CryptoProvider, Suite};
use abi::l5o::ResyncMode;
use abi::link::LinkCaps;
use abi::steering::{FlowOwners, FlowSteering, OwnQueue};
use abi::{Checksum, Refusal};
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Cidr, HostConfig, ListenConfig, SocketError, TlsAlert, TlsInfo, TlsVersion};
use nic::{DeviceConfig, L5oConfig};
use testkit::{
    LinkDestination, LinkFrame, LinkRule, NetworkNode, PLAIN_LINK, ReadAllApp, TestMachine,
    TwoMachineNetwork, session_keys,
};
use wire::{Endpoint, Tuple};

const VERSIONS: [TlsVersion; 2] = [TlsVersion::Tls12, TlsVersion::Tls13];
const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;

type ReaderNode = NetworkNode<ReadAllApp, ()>;

fn machine(number: u8, l5o: Option<L5oConfig>) -> (TestMachine, ReadAllApp) {
    machine_of_queue(number, l5o, None)
}

fn machine_of_queue(
    number: u8,
    l5o: Option<L5oConfig>,
    own_queue: Option<OwnQueue>,
) -> (TestMachine, ReadAllApp) {
    let mac = [2, 0, 0, 0, 0, number];
    let device =
        DeviceConfig { file: None, l5o, own_queue: own_queue.clone(), ..DeviceConfig::new(mac) };
    let addrs = vec![Cidr { addr: [10, 0, 0, number].into(), prefix_len: 24 }];
    let config = HostConfig { addrs, own_queue, ..HostConfig::default() };
    let link = LinkCaps { checksum: true, ..PLAIN_LINK };
    (TestMachine::new(config, device, link, number.into(), ()), ReadAllApp::default())
}

fn error_of(end: &mut ReaderNode) -> Option<SocketError> {
    let socket = end.app.socket.unwrap();
    end.host().readiness(socket).error
}

fn tls_of(end: &mut ReaderNode) -> TlsInfo {
    let socket = end.app.socket.unwrap();
    end.host().info(socket).and_then(|info| info.tls).unwrap()
}

/// Returns the rule of a link without delay that replaces each frame with payload from the client
/// by the frames that `tamper` returns. All frames count as having right checksums, as between two
/// ports of one machine.
fn tampering(mut tamper: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + 'static) -> LinkRule {
    Box::new(move |_, towards, LinkFrame { bytes, .. }| {
        let has_payload = bytes.len() > HEADERS && bytes[12..14] == [8, 0];
        let frames = match towards {
            LinkDestination::Server if has_payload => tamper(bytes),
            _ => vec![bytes],
        };
        let checksum = Checksum::Good;
        let arrives = |bytes| (Duration::ZERO, LinkFrame { bytes, checksum, segment_size: 0 });
        frames.into_iter().map(arrives).collect()
    })
}

fn faithful() -> LinkRule {
    tampering(|frame| vec![frame])
}

/// A client and a server with a TLS session.
struct TlsDeviceNetwork(TwoMachineNetwork<ReadAllApp, ReadAllApp, ()>);

fn engine() -> L5oConfig {
    L5oConfig::new(Arc::new(crypto::Provider))
}

impl TlsDeviceNetwork {
    /// Connects both, and attaches session keys with record numbers from 0.
    fn open(version: TlsVersion, suite: Suite, server: Option<L5oConfig>) -> Self {
        Self::with_number(version, suite, server, 0)
    }

    fn with_number(
        version: TlsVersion,
        suite: Suite,
        server: Option<L5oConfig>,
        number: u64,
    ) -> Self {
        Self::with_server(version, suite, machine(1, server), number)
    }

    fn with_server(
        version: TlsVersion,
        suite: Suite,
        server: (TestMachine, ReadAllApp),
        number: u64,
    ) -> Self {
        let client = machine(2, Some(engine()));
        let mut net = TwoMachineNetwork::new(Instant::from_millis(1000), client, server);
        net.link = faithful();
        net.server.host().listen(ListenConfig { addr: None, port: 443, backlog: 8 }).unwrap();
        let mut network = Self(net);
        network.connect(version, suite, number);
        network
    }

    /// Connects, and attaches session keys.
    fn connect(&mut self, version: TlsVersion, suite: Suite, number: u64) {
        let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 443 };
        let now = self.now;
        self.client.app.socket = Some(self.client.host().connect(now, remote).unwrap());
        self.settle();
        let crypto: Arc<dyn CryptoProvider> = Arc::new(crypto::Provider);
        let keys = session_keys(version, suite, number, &crypto);
        let Self(net) = self;
        for (end, keys) in [&mut net.client, &mut net.server].into_iter().zip(keys) {
            let socket = end.app.socket.unwrap();
            end.host().attach_tls(net.now, socket, &keys).unwrap();
        }
        net.settle();
    }

    /// Sends from the client over a link with `tamper`, until nothing is left to do.
    fn send_over(&mut self, bytes: &[u8], tamper: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + 'static) {
        self.link = tampering(tamper);
        self.send(bytes);
        self.link = faithful();
    }

    /// Sends from the client, and runs until nothing is left to do.
    fn send(&mut self, bytes: &[u8]) {
        let socket = self.client.app.socket.unwrap();
        let now = self.now;
        let taken = self.client.host().send(now, socket, Bytes::copy_from_slice(bytes)).unwrap();
        assert_eq!(taken, bytes.len());
        self.settle();
    }

    /// Advances time until the server has read `bytes` bytes. Delayed acknowledgments and
    /// retransmission time-outs need the time.
    fn wait_for(&mut self, bytes: usize) {
        for _ in 0..1000 {
            if self.server.app.read.len() >= bytes {
                return;
            }
            self.now += Duration::from_millis(300);
            self.settle();
        }
        panic!("{} of {bytes} bytes came", self.server.app.read.len());
    }
}

impl Deref for TlsDeviceNetwork {
    type Target = TwoMachineNetwork<ReadAllApp, ReadAllApp, ()>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for TlsDeviceNetwork {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// RFC 8446 section 5.2: a record with any byte changed causes an alert and never returns data,
/// also if a device decrypts. The peer receives the alert.
#[test]
fn every_flipped_byte() {
    for version in VERSIONS {
        for suite in SUITES {
            let mut at = HEADERS;
            loop {
                let mut sim = TlsDeviceNetwork::open(version, suite, Some(engine()));
                let flipped = Rc::new(Cell::new(false));
                let noted = Rc::clone(&flipped);
                sim.send_over(b"a record of its own", move |mut frame| {
                    if let Some(byte) = frame.get_mut(at).filter(|_| !noted.get()) {
                        *byte ^= 1;
                        noted.set(true);
                    }
                    vec![frame]
                });
                if !flipped.get() {
                    assert!(at > HEADERS + 19 + 20, "all of it was tried");
                    break;
                }
                // If the length field has grown, the server waits for more bytes.
                let socket = sim.client.app.socket.unwrap();
                let now = sim.now;
                let _ended = sim.client.host().send(now, socket, Bytes::from(text(400)));
                sim.settle();
                assert_eq!(sim.server.app.read, b"", "byte {at}");
                let error = error_of(&mut sim.server);
                assert!(matches!(error, Some(SocketError::Tls(_))), "byte {at}: {error:?}");
                let told = error_of(&mut sim.client);
                assert!(matches!(told, Some(SocketError::TlsPeer(_))), "byte {at}: {told:?}");
                assert_eq!(sim.server.count("tls_rx_records_full"), 0, "byte {at}");
                at += 1;
            }
        }
    }
}

/// An altered copy after the right segment changes nothing. An altered copy before it is accepted
/// by TCP, and ends the session.
#[test]
fn replays_with_other_content() {
    let other = |frame: &[u8]| {
        let mut other = frame.to_vec();
        let last = other.len() - 30;
        other[last] ^= 1;
        other
    };
    for version in VERSIONS {
        let mut sim = TlsDeviceNetwork::open(version, Suite::Aes128Gcm, Some(engine()));
        let want = text(60_000);
        sim.send_over(&want, move |frame| vec![frame.clone(), other(&frame), frame]);
        sim.wait_for(want.len());
        assert_eq!(sim.server.app.read, want);
        assert_eq!(sim.server.count("tls_rx_records_full"), 4);
        assert_eq!(sim.server.count("tls_decrypt_error"), 0);

        let mut sim = TlsDeviceNetwork::open(version, Suite::Aes128Gcm, Some(engine()));
        sim.send_over(&want, move |frame| vec![other(&frame), frame]);
        assert_eq!(sim.server.app.read, b"");
        assert_eq!(error_of(&mut sim.server), Some(SocketError::Tls(TlsAlert::BadRecordMac)));
        assert!(sim.server.count("rx_tls_err") > 0);
    }
}

/// One connection, and room for one of its two contexts: the host does the work of the refused one,
/// and the socket's information has the reason.
#[test]
fn a_full_table() {
    let small = L5oConfig { contexts_max: 1, ..engine() };
    let mut sim = TlsDeviceNetwork::open(TlsVersion::Tls13, Suite::Aes256Gcm, Some(small));
    let info = tls_of(&mut sim.server);
    assert_eq!((info.tx_offload, info.rx_offload), (Ok(()), Err(Refusal::TableFull)));
    assert_eq!(sim.server.count("tls_rx_device_refused"), 1);
    let want = text(100_000);
    sim.send(&want);
    sim.wait_for(want.len());
    assert_eq!(sim.server.app.read, want);
    assert_eq!(sim.server.count("rx_tls_decrypted_packets"), 0);
    assert_eq!(tls_of(&mut sim.server).rx_records[..2], [0; 2]);
    // The host asks again at each doubling.
    let asked = sim.server.count("tls_device_asked_again");
    assert!((1..=2).contains(&asked), "{asked}");
    assert_eq!(sim.server.count("tls_rx_device_refused"), 1 + asked);
}

/// When another connection has ended, a session gets the context that was refused: the receive
/// context with room for three contexts, with room for two the transmit context as well.
#[test]
fn refused_contexts_are_requested_again() {
    for contexts_max in [2, 3] {
        let small = L5oConfig { contexts_max, ..engine() };
        let mut sim = TlsDeviceNetwork::open(TlsVersion::Tls13, Suite::Aes128Gcm, Some(small));
        let first = sim.server.app.socket.unwrap();
        sim.connect(TlsVersion::Tls13, Suite::Aes128Gcm, 0);
        let second = sim.server.app.socket.unwrap();
        assert_ne!(first, second);
        let info = tls_of(&mut sim.server);
        assert_eq!(info.tx_offload.is_err(), contexts_max == 2);
        assert_eq!(info.rx_offload, Err(Refusal::TableFull));
        let now = sim.now;
        sim.server.host().abort(now, first);
        sim.settle();
        for _ in 0..20 {
            let now = sim.now;
            sim.server.host().send(now, second, Bytes::from(text(10_000))).unwrap();
            sim.send(&text(10_000));
        }
        sim.wait_for(200_000);
        let info = tls_of(&mut sim.server);
        assert_eq!((info.tx_offload, info.rx_offload), (Ok(()), Ok(())));
        assert_eq!(sim.server.count("tls_device_asked_again"), 4 - u64::from(contexts_max));
        assert!(sim.server.count("tx_tls_encrypted_bytes") > 100_000);
        assert!(sim.server.count("tls_rx_records_full") > 10);
        for app in [&sim.client.app, &sim.server.app] {
            assert!(app.read == text(10_000).repeat(20));
        }
    }
}

/// docs/properties.md, property 5: a device reset in mid-record loses no data, and offload resumes.
#[test]
fn resets_in_mid_record() {
    for (version, suite) in VERSIONS.into_iter().zip([Suite::Aes128Gcm, Suite::ChaCha20Poly1305]) {
        let mut sim = TlsDeviceNetwork::open(version, suite, Some(engine()));
        let want = text(200_000);
        let socket = sim.client.app.socket.unwrap();
        let now = sim.now;
        sim.client.host().send(now, socket, Bytes::from(want.clone())).unwrap();
        for round in 0..6 {
            // Some frames arrive, then both devices lose their state.
            let mut left = 5 + round;
            sim.link = tampering(move |frame| {
                let arrives = left > 0;
                left -= usize::from(arrives);
                if arrives { vec![frame] } else { vec![] }
            });
            sim.settle();
            sim.client.device().reset();
            sim.server.device().reset();
            sim.now += Duration::from_secs(1);
        }
        sim.link = faithful();
        sim.settle();
        sim.wait_for(want.len());
        assert_eq!(sim.server.app.read, want);
        assert_eq!(sim.server.count("tls_decrypt_error"), 0);
        assert_eq!(
            (tls_of(&mut sim.client).tx_offload, tls_of(&mut sim.server).rx_offload),
            (Ok(()), Ok(()))
        );
        let before = sim.server.count("tls_rx_records_full");
        let sealed = sim.client.count("tx_tls_encrypted_bytes");
        // Within a bound, the device resynchronizes and then decrypts whole records again.
        for round in 1..9 {
            sim.send(&text(50_000));
            sim.wait_for(want.len() + round * 50_000);
        }
        assert!(sim.server.count("tls_rx_records_full") >= before + 16);
        assert!(sim.client.count("tx_tls_encrypted_bytes") > sealed + 400_000);
    }
}

/// RFC 8446 section 5.3: record numbers never wrap.
#[test]
fn numbers_end() {
    for number in [u64::MAX, u64::MAX - 1] {
        let mut sim = TlsDeviceNetwork::with_number(
            TlsVersion::Tls13,
            Suite::Aes128Gcm,
            Some(engine()),
            number,
        );
        let socket = sim.client.app.socket.unwrap();
        let now = sim.now;
        let _ = sim.client.host().send(now, socket, Bytes::from_static(b"too late"));
        sim.settle();
        assert_eq!(error_of(&mut sim.client), Some(SocketError::Tls(TlsAlert::InternalError)));
        assert_eq!(sim.server.app.read, b"");
    }
}

/// Record numbers beyond 32 bits: the device's encryption is decrypted by the host and by a device,
/// the latter also with a loss and a resynchronization.
#[test]
fn numbers_cross_32_bits() {
    for version in VERSIONS {
        for (server, lossy) in [(None, false), (Some(engine()), false), (Some(engine()), true)] {
            let opens = server.is_some();
            let mut sim = TlsDeviceNetwork::with_number(
                version,
                Suite::ChaCha20Poly1305,
                server,
                (1 << 32) - 3,
            );
            let (want, mut count) = (text(300_000), 0);
            sim.send_over(&want, move |frame| {
                count += 1;
                if lossy && (20..50).contains(&count) { vec![] } else { vec![frame] }
            });
            sim.wait_for(want.len());
            assert_eq!(sim.server.app.read, want, "{version:?} {opens}");
            assert!(sim.client.count("tx_tls_encrypted_bytes") >= 300_000);
            assert_eq!(sim.server.count("tls_decrypt_error"), 0);
            let full = sim.server.count("tls_rx_records_full");
            assert!(full >= if lossy { 8 } else { 19 * u64::from(opens) }, "{full} {lossy}");
        }
    }
}

/// In every [`ResyncMode`], with and without out-of-order processing, the device decrypts whole
/// records again after it lost headers and bodies.
#[test]
fn every_mode_resynchronizes() {
    for resync in [ResyncMode::StreamScan, ResyncMode::Async, ResyncMode::NextHint] {
        for out_of_order in [true, false] {
            let config = L5oConfig { resync, out_of_order, ..engine() };
            let mut sim = TlsDeviceNetwork::open(TlsVersion::Tls13, Suite::Aes128Gcm, Some(config));
            let mut count = 0;
            let mut want = text(30_000);
            sim.send(&want);
            let more = text(120_000);
            sim.send_over(&more, move |frame| {
                count += 1;
                if (12..40).contains(&count) { vec![] } else { vec![frame] }
            });
            want.extend_from_slice(&more);
            sim.wait_for(want.len());
            // Records of various sizes, so that no guess is right by chance.
            for len in [3000, 777, 16_384, 5000, 9999, 20_000, 1, 2000, 4000, 3000, 500, 40_000] {
                sim.send(&text(len));
                want.extend(text(len));
                sim.wait_for(want.len());
            }
            let before = sim.server.count("tls_rx_records_full");
            for len in [3000, 777, 16_384, 5000] {
                sim.send(&text(len));
                want.extend(text(len));
                sim.wait_for(want.len());
            }
            assert_eq!(sim.server.app.read, want);
            let full = sim.server.count("tls_rx_records_full") - before;
            assert_eq!(full, 4, "{resync:?}, out of order {out_of_order}");
        }
    }
}

/// A session moves to the host of another queue, with a request that its device decrypted and that
/// was not read. The new device encrypts and decrypts from then on.
#[test]
fn a_session_moves_to_another_device() {
    for version in VERSIONS {
        let steering = Arc::new(FlowSteering::new(4, 2));
        let server = |index| {
            let own = OwnQueue { steering: Arc::clone(&steering), index };
            machine_of_queue(1, Some(engine()), Some(own))
        };
        let suite = Suite::Aes128Gcm;
        // The client's port, and so its queue, is not known before.
        let local = Endpoint { addr: [10, 0, 0, 1].into(), port: 443 };
        let mut sim = TlsDeviceNetwork::with_server(version, suite, server(0), 0);
        let client = sim.client.app.socket.unwrap();
        let remote = sim.client.host().local(client).unwrap();
        let entry = steering.entry_of(&Tuple { local, remote });
        assert_eq!(steering.owners_of_entry(entry), FlowOwners::only(0), "another seed");
        let first = text(30_000);
        sim.send(&first);
        sim.wait_for(first.len());
        let socket = sim.server.app.socket.take().unwrap();
        sim.send(b"a request");
        assert!(sim.server.count("tls_rx_records_full") > 2, "it is in place");

        assert!(steering.move_entry(entry, 1));
        let now = sim.now;
        assert_eq!(sim.server.host().queue_to_follow(socket), Some(1));
        let moved = sim.server.host().move_out(now, socket).unwrap();
        sim.settle();
        assert_eq!(sim.server.count("l5o_contexts"), 0, "of the former device");
        sim.server.machine = server(1).0;
        sim.server.host().listen(ListenConfig { addr: None, port: 443, backlog: 8 }).unwrap();
        sim.server.host().take_over(now, moved);
        sim.settle();
        let mut want = first;
        want.extend_from_slice(b"a request");
        assert_eq!(sim.server.app.read, want);

        let more = text(90_000);
        sim.send(&more);
        want.extend_from_slice(&more);
        sim.wait_for(want.len());
        assert_eq!(sim.server.app.read, want);
        let socket = sim.server.app.socket.unwrap();
        let now = sim.now;
        let sent = sim.server.host().send(now, socket, Bytes::from(text(20_000))).unwrap();
        sim.settle();
        assert!(sim.client.app.read == text(sent) && sent == 20_000);
        let info = tls_of(&mut sim.server);
        assert_eq!((info.tx_offload, info.rx_offload), (Ok(()), Ok(())));
        let names = ["tls_rx_records_full", "tls_rx_records_none", "tls_tx_sw"];
        assert_eq!(names.map(|name| sim.server.count(name)), [6, 0, 0]);
        assert_eq!(
            sim.server.count("tls_decrypt_error") + sim.client.count("tls_decrypt_error"),
            0
        );
        assert!(sim.server.count("tx_tls_encrypted_bytes") > 20_000);
    }
}
