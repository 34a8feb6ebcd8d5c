//! Two hosts with real devices, record by record: what each does when TLS meets what it must not
//! believe. No network between them but a function that looks at each frame.

use std::sync::Arc;

use abi::crypto::Suite;
use abi::l5o::ResyncMode;
use abi::port::WireCaps;
use abi::{Checksum, Refusal};
use base::Instant;
use bytes::Bytes;
use host::{
    Alert, Cidr, Config, Host, Listen, SocketError, SocketId, TlsDirection, TlsInfo, TlsKeys,
    TlsVersion,
};
use nic::{DeviceConfig, L5oConfig};
use testkit::{Frame, Machine, Notices, PLAIN_LINK, read_all};
use wire::Endpoint;

const VERSIONS: [TlsVersion; 2] = [TlsVersion::Tls12, TlsVersion::Tls13];
const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;

struct End {
    machine: Machine,
    app: Notices,
    socket: Option<SocketId>,
    read: Vec<u8>,
}

impl End {
    fn new(number: u8, l5o: Option<L5oConfig>) -> Self {
        let device = DeviceConfig { file: None, l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) };
        let addr = [10, 0, 0, number].into();
        let config = Config { addrs: vec![Cidr { addr, prefix_len: 24 }], ..Config::default() };
        let link = WireCaps { checksum: true, ..PLAIN_LINK };
        let machine = Machine::new(config, device, link, number.into(), ());
        Self { machine, app: Notices::default(), socket: None, read: Vec::new() }
    }

    fn host(&mut self) -> &mut Host {
        self.machine.host()
    }

    fn error(&mut self) -> Option<SocketError> {
        let socket = self.socket.unwrap();
        self.host().readiness(socket).error
    }

    fn tls(&mut self) -> TlsInfo {
        let socket = self.socket.unwrap();
        self.host().info(socket).and_then(|info| info.tls).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.machine.count(name)
    }

    /// Lets host and device work; returns the frames that leave.
    fn work(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let frames = self.machine.settle(now, &mut self.app);
        self.socket = self.app.accepted().or(self.socket);
        frames.into_iter().map(|frame| frame.bytes).collect()
    }

    /// Takes a frame as between two ports of one machine: the checksum of one that was changed on
    /// its way is right.
    fn take(&mut self, bytes: Vec<u8>) {
        self.machine.receive(Frame { bytes, checksum: Checksum::Good, segment_size: 0 });
    }

    fn read(&mut self) {
        if let Some(socket) = self.socket {
            read_all(self.machine.host(), socket, &mut self.read);
        }
    }
}

struct World {
    now: Instant,
    client: End,
    server: End,
}

/// What happens to a frame with payload from the client: what arrives in its place.
type Tamper<'a> = &'a mut dyn FnMut(Vec<u8>) -> Vec<Vec<u8>>;

fn engine() -> L5oConfig {
    L5oConfig::new(Arc::new(crypto::Provider))
}

impl World {
    /// Two that have just agreed on keys.
    fn open(version: TlsVersion, suite: Suite, server: Option<L5oConfig>) -> Self {
        Self::with_number(version, suite, server, 0)
    }

    fn with_number(
        version: TlsVersion,
        suite: Suite,
        server: Option<L5oConfig>,
        number: u64,
    ) -> Self {
        let (client, server) = (End::new(2, Some(engine())), End::new(1, server));
        let mut world = Self { now: Instant::from_millis(1000), client, server };
        let listen = Listen { addr: None, port: 443, backlog: 8 };
        world.server.host().listen(listen).unwrap();
        let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 443 };
        world.client.socket = Some(world.client.host().connect(world.now, remote).unwrap());
        world.run(&mut |frame| vec![frame]);
        for (end, (tx, rx)) in [(&mut world.client, (1, 2)), (&mut world.server, (2, 1))] {
            let half = |which: u8| TlsDirection::new(&[which; 32], [which; 12], number);
            let crypto = Arc::new(crypto::Provider);
            let keys = TlsKeys { version, suite, tx: half(tx), rx: half(rx), crypto };
            let socket = end.socket.unwrap();
            end.host().attach_tls(world.now, socket, &keys).unwrap();
        }
        world.run(&mut |frame| vec![frame]);
        world
    }

    /// Runs until nothing moves.
    fn run(&mut self, tamper: Tamper<'_>) {
        loop {
            let out = self.client.work(self.now);
            let back = self.server.work(self.now);
            self.server.read();
            self.client.read();
            if out.is_empty() && back.is_empty() {
                break;
            }
            for frame in out {
                let has_payload = frame.len() > HEADERS && frame[12..14] == [8, 0];
                let frames = if has_payload { tamper(frame) } else { vec![frame] };
                frames.into_iter().for_each(|frame| self.server.take(frame));
            }
            back.into_iter().for_each(|frame| self.client.take(frame));
        }
    }

    fn send(&mut self, bytes: &[u8], tamper: Tamper<'_>) {
        let socket = self.client.socket.unwrap();
        let taken = self.client.host().send(socket, Bytes::copy_from_slice(bytes)).unwrap();
        assert_eq!(taken, bytes.len());
        self.run(tamper);
    }
}

impl World {
    /// Lets time pass until the server has read as much; delayed acknowledgments and time-outs need
    /// it.
    fn wait_for(&mut self, bytes: usize) {
        for _ in 0..1000 {
            if self.server.read.len() >= bytes {
                return;
            }
            self.now += base::Duration::from_millis(300);
            self.run(&mut |frame| vec![frame]);
        }
        panic!("{} of {bytes} bytes came", self.server.read.len());
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// RFC 8446 section 5.2: whatever byte is changed, it is an alert and never data; with a device
/// that opens, too. The peer is told.
#[test]
fn every_flipped_byte() {
    for version in VERSIONS {
        for suite in SUITES {
            let mut at = HEADERS;
            loop {
                let mut world = World::open(version, suite, Some(engine()));
                let mut flipped = false;
                world.send(b"a record of its own", &mut |mut frame| {
                    if let Some(byte) = frame.get_mut(at).filter(|_| !flipped) {
                        *byte ^= 1;
                        flipped = true;
                    }
                    vec![frame]
                });
                if !flipped {
                    assert!(at > HEADERS + 19 + 20, "all of it was tried");
                    break;
                }
                // A length that is more waits for bytes.
                let socket = world.client.socket.unwrap();
                let _ended = world.client.host().send(socket, Bytes::from(text(400)));
                world.run(&mut |frame| vec![frame]);
                assert_eq!(world.server.read, b"", "byte {at}");
                let error = world.server.error();
                assert!(matches!(error, Some(SocketError::Tls(_))), "byte {at}: {error:?}");
                let told = world.client.error();
                assert!(matches!(told, Some(SocketError::TlsPeer(_))), "byte {at}: {told:?}");
                assert_eq!(world.server.count("tls_rx_records_full"), 0, "byte {at}");
                at += 1;
            }
        }
    }
}

/// A copy with other bytes behind the right one changes nothing; one before it is what TCP takes,
/// and ends the session.
#[test]
fn replays_with_other_content() {
    let other = |frame: &[u8]| {
        let mut other = frame.to_vec();
        let last = other.len() - 30;
        other[last] ^= 1;
        other
    };
    for version in VERSIONS {
        let mut world = World::open(version, Suite::Aes128Gcm, Some(engine()));
        let want = text(60_000);
        world.send(&want, &mut |frame| vec![frame.clone(), other(&frame), frame]);
        world.wait_for(want.len());
        assert_eq!(world.server.read, want);
        assert_eq!(world.server.count("tls_rx_records_full"), 4);
        assert_eq!(world.server.count("tls_decrypt_error"), 0);

        let mut world = World::open(version, Suite::Aes128Gcm, Some(engine()));
        world.send(&want, &mut |frame| vec![other(&frame), frame]);
        assert_eq!(world.server.read, b"");
        assert_eq!(world.server.error(), Some(SocketError::Tls(Alert::BadRecordMac)));
        assert!(world.server.count("rx_tls_err") > 0);
    }
}

/// Two connections and room for three contexts: what is refused is done by the host, and `ss` says
/// why.
#[test]
fn a_full_table() {
    let small = L5oConfig { contexts_max: 1, ..engine() };
    let mut world = World::open(TlsVersion::Tls13, Suite::Aes256Gcm, Some(small));
    let info = world.server.tls();
    assert_eq!((info.tx_offload, info.rx_offload), (Ok(()), Err(Refusal::TableFull)));
    assert_eq!(world.server.count("tls_rx_device_refused"), 1);
    let want = text(100_000);
    world.send(&want, &mut |frame| vec![frame]);
    world.wait_for(want.len());
    assert_eq!(world.server.read, want);
    assert_eq!(world.server.count("rx_tls_decrypted_packets"), 0);
    assert_eq!(world.server.tls().rx_records, [0; 3], "nothing was expected of the device");
}

/// Property 7: a device that is reset in mid-record loses no data, and goes on after it.
#[test]
fn resets_in_mid_record() {
    for (version, suite) in VERSIONS.into_iter().zip([Suite::Aes128Gcm, Suite::ChaCha20Poly1305]) {
        let mut world = World::open(version, suite, Some(engine()));
        let want = text(200_000);
        let socket = world.client.socket.unwrap();
        world.client.host().send(socket, Bytes::from(want.clone())).unwrap();
        for round in 0..6 {
            let frames = world.client.work(world.now);
            // Some arrive, then both devices lose everything.
            for frame in frames.into_iter().take(5 + round) {
                world.server.take(frame);
            }
            let back = world.server.work(world.now);
            world.server.read();
            back.into_iter().for_each(|frame| world.client.take(frame));
            world.client.machine.device().reset();
            world.server.machine.device().reset();
            world.now += base::Duration::from_secs(1);
        }
        world.run(&mut |frame| vec![frame]);
        world.wait_for(want.len());
        assert_eq!(world.server.read, want);
        assert_eq!(world.server.count("tls_decrypt_error"), 0);
        assert_eq!(
            (world.client.tls().tx_offload, world.server.tls().rx_offload),
            (Ok(()), Ok(()))
        );
        let before = world.server.count("tls_rx_records_full");
        let sealed = world.client.count("tx_tls_encrypted_bytes");
        // Within a bound: what is sent next finds the place again, what follows is opened.
        for round in 1..9 {
            world.send(&text(50_000), &mut |frame| vec![frame]);
            world.wait_for(want.len() + round * 50_000);
        }
        assert!(world.server.count("tls_rx_records_full") >= before + 16);
        assert!(world.client.count("tx_tls_encrypted_bytes") > sealed + 400_000);
    }
}

/// RFC 8446 section 5.3: numbers never wrap.
#[test]
fn numbers_end() {
    for number in [u64::MAX, u64::MAX - 1] {
        let mut world =
            World::with_number(TlsVersion::Tls13, Suite::Aes128Gcm, Some(engine()), number);
        let socket = world.client.socket.unwrap();
        let _ = world.client.host().send(socket, Bytes::from_static(b"too late"));
        world.run(&mut |frame| vec![frame]);
        assert_eq!(world.client.error(), Some(SocketError::Tls(Alert::InternalError)));
        assert_eq!(world.server.read, b"");
    }
}

/// Record numbers of more than 32 bits: what a device seals the host opens, and the other way, with
/// records in a row, lost and found back.
#[test]
fn numbers_cross_32_bits() {
    for version in VERSIONS {
        for (server, lossy) in [(None, false), (Some(engine()), false), (Some(engine()), true)] {
            let opens = server.is_some();
            let mut world =
                World::with_number(version, Suite::ChaCha20Poly1305, server, (1 << 32) - 3);
            let (want, mut count) = (text(300_000), 0);
            world.send(&want, &mut |frame| {
                count += 1;
                if lossy && (20..50).contains(&count) { vec![] } else { vec![frame] }
            });
            world.wait_for(want.len());
            assert_eq!(world.server.read, want, "{version:?} {opens}");
            assert!(world.client.count("tx_tls_encrypted_bytes") >= 300_000);
            assert_eq!(world.server.count("tls_decrypt_error"), 0);
            let full = world.server.count("tls_rx_records_full");
            assert!(full >= if lossy { 8 } else { 19 * u64::from(opens) }, "{full} {lossy}");
        }
    }
}

/// The three ways of finding back (terms.md section 3) and both algorithms: after a loss of header
/// and body, the device opens whole records again.
#[test]
fn every_mode_finds_back() {
    for resync in [ResyncMode::StreamScan, ResyncMode::Async, ResyncMode::NextHint] {
        for out_of_order in [true, false] {
            let config = L5oConfig { resync, out_of_order, ..engine() };
            let mut world = World::open(TlsVersion::Tls13, Suite::Aes128Gcm, Some(config));
            let mut count = 0;
            let mut want = text(30_000);
            world.send(&want, &mut |frame| vec![frame]);
            let more = text(120_000);
            world.send(&more, &mut |frame| {
                count += 1;
                if (12..40).contains(&count) { vec![] } else { vec![frame] }
            });
            want.extend_from_slice(&more);
            world.wait_for(want.len());
            // Records of other sizes, so that nothing is right by chance.
            for len in [3000, 777, 16_384, 5000, 9999, 20_000, 1, 2000, 4000, 3000, 500, 40_000] {
                world.send(&text(len), &mut |frame| vec![frame]);
                want.extend(text(len));
                world.wait_for(want.len());
            }
            let before = world.server.count("tls_rx_records_full");
            for len in [3000, 777, 16_384, 5000] {
                world.send(&text(len), &mut |frame| vec![frame]);
                want.extend(text(len));
                world.wait_for(want.len());
            }
            assert_eq!(world.server.read, want);
            let full = world.server.count("tls_rx_records_full") - before;
            assert_eq!(full, 4, "{resync:?}, out of order {out_of_order}");
        }
    }
}
