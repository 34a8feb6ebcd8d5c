//! Three hosts with real devices: a client, a proxy that relays a request and its response in
//! software and then splices, and a server. The network between them is a function that delivers
//! frames, and loses some.

use abi::link::LinkCaps;
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{
    Cidr, HostConfig, ListenConfig, Notice, SocketError, SocketId, SpliceEnd, SpliceId, TcpConfig,
};
use nic::DeviceConfig;
use testkit::{LinkFrame, NetworkNode, NoticeRecorder, PLAIN_LINK, TestMachine, read_all};
use wire::Endpoint;

const PROXY: usize = 1;
const IDLE: Duration = Duration::from_secs(60);

fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(number).unwrap()]
}

fn addr(number: usize, v6: bool) -> core::net::IpAddr {
    let number = u8::try_from(number).unwrap() + 10;
    if v6 {
        [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into()
    } else {
        [10, 0, 0, number].into()
    }
}

fn machine(number: usize, run: &SpliceRunParams) -> NetworkNode<NoticeRecorder, ()> {
    let mut device = DeviceConfig::new(mac(number));
    device.file = None;
    let link = LinkCaps { segmentation: run.runs, checksum: run.runs, ..PLAIN_LINK };
    let cidr = |v6, prefix_len| Cidr { addr: addr(number, v6), prefix_len };
    let addrs = vec![cidr(false, 24), cidr(true, 64)];
    let mut tcp = TcpConfig { timestamps: run.timestamps, ..TcpConfig::default() };
    // The three hosts differ in windows and options.
    tcp.receive_bytes_max = [1 << 20, 200_000, 50_000][number];
    tcp.sack = number != 2 || run.sack;
    tcp.ecn = number != 0;
    let config = HostConfig { addrs, tcp, ..HostConfig::default() };
    let seed = u64::try_from(number).unwrap() + run.seed;
    NetworkNode {
        machine: TestMachine::new(config, device, link, seed, ()),
        app: NoticeRecorder::default(),
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct SpliceRunParams {
    /// True for IPv6 between client and proxy, and between proxy and server.
    v6: [bool; 2],
    timestamps: bool,
    /// True if the server offers SACK. The others always do.
    sack: bool,
    /// True if the links carry runs of segments and partial checksums, as a TAP does.
    runs: bool,
    /// Percentage of frames lost once the pair is spliced.
    loss: u64,
    seed: u64,
}

const PLAIN: SpliceRunParams =
    SpliceRunParams { v6: [false; 2], timestamps: true, sack: true, runs: false, loss: 0, seed: 1 };

/// The three machines, and what the client and the server have received.
struct SpliceDeviceNetwork {
    now: Instant,
    ends: [NetworkNode<NoticeRecorder, ()>; 3],
    loss: u64,
    random: Prng,
    client: SocketId,
    server: SocketId,
    /// The proxy's sockets to the client and to the server.
    proxy: [SocketId; 2],
    /// Bytes that the client and the server have received.
    got: [Vec<u8>; 2],
}

impl SpliceDeviceNetwork {
    /// Connects the client to the proxy, and the proxy to the server.
    fn new(run: SpliceRunParams) -> Self {
        let mut ends = [0, 1, 2].map(|number| machine(number, &run));
        let now = Instant::from_millis(1000);
        for number in [PROXY, 2] {
            ends[number].host().listen(ListenConfig { addr: None, port: 80, backlog: 8 }).unwrap();
        }
        let to = |number, v6| Endpoint { addr: addr(number, v6), port: 80 };
        let client = ends[0].host().connect(now, to(PROXY, run.v6[0])).unwrap();
        let towards = ends[PROXY].host().connect(now, to(2, run.v6[1])).unwrap();
        let (loss, random) = (0, Prng::new(run.seed));
        let (proxy, got) = ([towards; 2], [vec![], vec![]]);
        let mut sim = Self { now, ends, loss, random, client, server: towards, proxy, got };
        sim.run_for(100);
        sim.proxy[0] = sim.ends[PROXY].app.accepted().expect("the client is connected");
        sim.server = sim.ends[2].app.accepted().expect("the proxy is connected");
        sim
    }

    /// Runs for `ms` milliseconds of virtual time.
    fn run_for(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.now < until {
            self.settle();
            self.now += Duration::from_millis(1);
        }
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let frames: Vec<(usize, LinkFrame)> = (0..3)
                .flat_map(|from| {
                    let out = {
                        let NetworkNode { machine, app } = &mut self.ends[from];
                        machine.settle(self.now, app)
                    };
                    out.into_iter().map(move |frame| (from, frame))
                })
                .collect();
            read_all(self.ends[0].host(), self.client, &mut self.got[0]);
            read_all(self.ends[2].host(), self.server, &mut self.got[1]);
            if frames.is_empty() {
                return;
            }
            for (from, frame) in frames {
                if self.random.below(100) < self.loss {
                    continue;
                }
                let group = frame.bytes[0] & 1 == 1;
                for to in (0..3).filter(|&to| to != from) {
                    if group || frame.bytes[..6] == mac(to) {
                        self.ends[to].receive(frame.clone());
                    }
                }
            }
        }
    }

    fn send(&mut self, end: usize, bytes: &[u8]) {
        let socket = if end == 0 { self.client } else { self.server };
        let taken =
            self.ends[end].host().send(self.now, socket, Bytes::copy_from_slice(bytes)).unwrap();
        assert_eq!(taken, bytes.len());
    }

    /// Relays the bytes of one side in software; returns them.
    fn relay(&mut self, from: usize) -> Vec<u8> {
        let mut bytes = vec![];
        let [source, target] = [self.proxy[from], self.proxy[1 - from]];
        let proxy = self.ends[PROXY].host();
        read_all(proxy, source, &mut bytes);
        proxy.send(self.now, target, Bytes::from(bytes.clone())).unwrap();
        bytes
    }

    /// Relays a request and its response through the proxy's application.
    fn first_exchange(&mut self) {
        self.send(0, b"GET / HTTP/1.1\r\n\r\n");
        self.run_for(50);
        assert_eq!(self.relay(0), b"GET / HTTP/1.1\r\n\r\n");
        self.run_for(50);
        self.send(2, b"HTTP/1.1 200 OK\r\n\r\n");
        self.run_for(50);
        assert_eq!(self.relay(1), b"HTTP/1.1 200 OK\r\n\r\n");
        self.run_for(100);
        assert_eq!(
            self.got,
            [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec()]
        );
        self.got = [vec![], vec![]];
    }

    fn nsplice(&mut self) -> SpliceId {
        let [a, b] = self.proxy;
        self.ends[PROXY].app.0.clear();
        self.ends[PROXY].host().nsplice(self.now, a, b, IDLE).unwrap()
    }

    fn wait_for(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..4000 {
            if done(self) {
                return;
            }
            self.run_for(50);
        }
        panic!("{what} did not happen: {:?} bytes", self.got.each_ref().map(Vec::len));
    }
}

fn text(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * salt + at / 253) % 251).unwrap()).collect()
}

/// Relays a request and a response in software, then data in both directions through the device,
/// under loss; then both ends close. Data arrives unchanged, and the proxy's host sees none of the
/// spliced frames.
fn splice_under(run: SpliceRunParams) {
    let mut sim = SpliceDeviceNetwork::new(run);
    sim.first_exchange();
    let id = sim.nsplice();
    // Both ends send while the splice is being set up, so that packets are in flight.
    let (up, down) = (text(300_000, 7), text(400_000, 13));
    sim.send(0, &up[..20_000]);
    sim.send(2, &down[..20_000]);
    sim.wait_for("splicing", |w| w.ends[PROXY].app.0.contains(&Notice::Spliced(id)));
    let before = sim.ends[PROXY].host().counters().received_frames;
    sim.loss = run.loss;
    sim.send(0, &up[20_000..]);
    sim.send(2, &down[20_000..]);
    sim.wait_for("everything", |w| w.got[1].len() >= up.len() && w.got[0].len() >= down.len());
    assert!(sim.got[1] == up && sim.got[0] == down, "{run:?}");
    sim.ends[0].host().shutdown(sim.now, sim.client);
    sim.run_for(2000);
    sim.send(2, b"after the client's end");
    sim.ends[2].host().shutdown(sim.now, sim.server);
    sim.wait_for("the end", |w| {
        let (client, server) =
            (w.ends[0].host().readiness(w.client), w.ends[2].host().readiness(w.server));
        let ended = |r: host::Readiness| r.peer_closed || r.error.is_some();
        ended(client) && ended(server)
    });
    assert_eq!(sim.got[0][down.len()..], *b"after the client's end");
    assert_eq!(sim.ends[PROXY].host().counters().received_frames, before, "{run:?}");
    sim.loss = 0;
    sim.wait_for("SpliceClosed", |w| w.ends[PROXY].app.0.contains(&Notice::SpliceClosed(id)));
    let meta = sim.ends[PROXY].host().take_splice(id).unwrap();
    assert_eq!(meta.end, Some(SpliceEnd::Closed), "{run:?}");
    assert_eq!(meta.bytes, [300_000, 400_022], "{run:?}");
    for dropped in ["out_of_window", "bad_ack", "no_ack", "malformed", "blind_reset", "kept_full"] {
        let name = format!("splice_dropped_{dropped}");
        assert_eq!(sim.ends[PROXY].count(&name), 0, "{name} {run:?}");
    }
}

#[test]
fn between_all_ip_versions() {
    for v6 in [[false, false], [true, true], [false, true], [true, false]] {
        splice_under(SpliceRunParams { v6, ..PLAIN });
    }
}

#[test]
fn under_loss() {
    for seed in 1..=4 {
        let v6 = [seed % 2 == 0, seed > 2];
        splice_under(SpliceRunParams { v6, loss: 3, seed, ..PLAIN });
    }
}

/// As over a TAP: runs of segments, and partial checksums.
#[test]
fn with_runs() {
    for v6 in [[false, false], [false, true], [true, false]] {
        splice_under(SpliceRunParams { v6, runs: true, ..PLAIN });
        splice_under(SpliceRunParams { v6, runs: true, loss: 2, ..PLAIN });
    }
}

#[test]
fn with_fewer_options() {
    splice_under(SpliceRunParams { timestamps: false, loss: 2, ..PLAIN });
    splice_under(SpliceRunParams { sack: false, loss: 2, v6: [false, true], ..PLAIN });
    splice_under(SpliceRunParams { sack: false, timestamps: false, runs: true, loss: 2, ..PLAIN });
}

/// A reset by one end reaches the other, and the proxy's host learns which end it was.
#[test]
fn a_reset_passes_through() {
    for from in [0, 2] {
        let mut sim = SpliceDeviceNetwork::new(PLAIN);
        sim.first_exchange();
        let id = sim.nsplice();
        sim.send(from, &text(50_000, 3));
        sim.wait_for("splicing", |w| w.ends[PROXY].app.0.contains(&Notice::Spliced(id)));
        sim.run_for(500);
        let (socket, other) =
            if from == 0 { (sim.client, sim.server) } else { (sim.server, sim.client) };
        sim.send(from, b"on its way");
        sim.ends[from].host().abort(sim.now, socket);
        sim.run_for(500);
        let error = sim.ends[2 - from].host().readiness(other).error;
        assert_eq!(error, Some(SocketError::Reset));
        let meta = sim.ends[PROXY].host().take_splice(id).unwrap();
        assert_eq!(meta.end, Some(SpliceEnd::Reset(u8::from(from == 2))));
    }
}

/// After a reset of the proxy's device, its host no longer knows the connections, and resets each
/// at its next segment.
#[test]
fn a_reset_of_the_device_ends_them() {
    let mut sim = SpliceDeviceNetwork::new(PLAIN);
    sim.first_exchange();
    let id = sim.nsplice();
    sim.wait_for("splicing", |w| w.ends[PROXY].app.0.contains(&Notice::Spliced(id)));
    sim.ends[PROXY].device().reset();
    sim.send(0, b"hello?");
    sim.send(2, b"hello?");
    sim.run_for(500);
    for (end, socket) in [(0, sim.client), (2, sim.server)] {
        assert_eq!(sim.ends[end].host().readiness(socket).error, Some(SocketError::Reset));
    }
    assert_eq!(sim.ends[PROXY].host().take_splice(id).unwrap().end, None);
}
