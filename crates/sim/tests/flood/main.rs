//! Floods: the goodput of legitimate connections while SYNs, forged acknowledgments or forged
//! resets take half of the victim's time. The connections are held by the host, set up by the
//! device, torn down by it, or spliced.
//!
//! Each test compares the bytes that applications receive in a simulated second without a flood and
//! in one with it, on a machine whose halves take time for every frame ([`machine`]). Frames and
//! counters are exact.

mod attack;
mod machine;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Duration, Instant};
use bytes::Bytes;
use core::net::Ipv4Addr;
use host::{
    Cidr, Host, HostConfig, ListenConfig, ListenerOption, Notice, SocketId, SpliceId, TcpConfig,
};
use nic::DeviceConfig;
use wire::Endpoint;
use wire::emit::EthernetAddrs;

use attack::{Attacker, FloodKind};
use machine::{HALF_OF_THE_DEVICE, HALF_OF_THE_DEVICE_SYN, HALF_OF_THE_HOST, TICK, TimedMachine};

/// Index of the machine of all clients, which is also the router.
const CLIENTS: usize = 0;
/// Index of the machine under attack.
const VICTIM: usize = 1;
/// Index of the machine of the servers behind the proxy.
const SERVERS: usize = 2;
/// One-way delay.
const DELAY: Duration = Duration::from_millis(5);
/// Receive buffer of each connection. The goodput of a connection is bounded by its window and the
/// round trip.
const WINDOW: u32 = 32 << 10;
/// Port on which clients receive.
const DOWNLOAD_PORT: u16 = 80;
/// Port on which clients send.
const UPLOAD_PORT: u16 = 81;
/// All kinds of connections.
const CONN_HOLDERS: [ConnHolder; 4] =
    [ConnHolder::Host, ConnHolder::SetUp, ConnHolder::SetUpAndTornDown, ConnHolder::Spliced];
/// Number of long-lived connections, half of them in each direction.
const LONG: usize = 8;
/// Number of short connections at a time.
const SHORT: usize = 64;
/// Bytes of the response on a short connection.
const RESPONSE: usize = 12_000;
/// Half-open connections beyond which SYN cookies are sent.
const BACKLOG: usize = 128;
/// Flood frames that arrive back to back.
const BURST: u64 = 32;
/// Limit of resets per second that the victim sends for unknown connections.
const RESETS_PER_S: u32 = 500;

/// The part of the machine that holds the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnHolder {
    /// The host, from the beginning.
    Host,
    /// The host, after set-up by the device.
    SetUp,
    /// Short connections that the device sets up and tears down.
    SetUpAndTornDown,
    /// The device, which splices them.
    Spliced,
}

/// Parameters of a run: the kind of connections, the kind of flood, and its frames per second.
#[derive(Clone, Copy, Debug)]
struct FloodRunParams {
    holder: ConnHolder,
    kind: FloodKind,
    per_s: u64,
}

/// The machines, their applications, and the network.
struct FloodNetwork {
    run: FloodRunParams,
    now: Instant,
    machines: [TimedMachine; 3],
    /// Frames in flight to each machine, with their times of arrival.
    in_flight: [VecDeque<(Instant, Vec<u8>)>; 3],
    attacker: Attacker,
    attacking: bool,
    /// Flood frames due, in billionths of a frame.
    due_nanoframes: u64,
    /// Client sockets that have sent their first byte.
    greeted: BTreeSet<SocketId>,
    /// Sockets of each machine that always send.
    senders: [Vec<SocketId>; 3],
    /// Socket pairs of the proxy that are not spliced yet: the server's socket, and the client's.
    unspliced: BTreeMap<SocketId, SocketId>,
    splices: Vec<SpliceId>,
    /// Bytes that applications have received.
    received_bytes: u64,
    errors: u64,
    /// Frames of the victim to addresses that do not exist.
    replies_to_unknown: u64,
}

fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(number).unwrap()]
}

fn addr(number: usize) -> Ipv4Addr {
    [10, 0, 0, 10 + u8::try_from(number).unwrap()].into()
}

fn machine(number: usize) -> TimedMachine {
    let mut addrs = vec![Cidr { addr: addr(number).into(), prefix_len: 16 }];
    if number == CLIENTS {
        addrs.push(Cidr { addr: [10, 0, 0, 1].into(), prefix_len: 16 });
    }
    let tcp = TcpConfig {
        receive_bytes_max: WINDOW,
        send_bytes_max: 2 * WINDOW as usize,
        resets_per_s_max: RESETS_PER_S,
        ..TcpConfig::default()
    };
    let gateways = vec![[10, 0, 0, 1].into()];
    let config = HostConfig { addrs, gateways, tcp, ..HostConfig::default() };
    TimedMachine::new(DeviceConfig::new(mac(number)), config, number as u64 + 5, number != VICTIM)
}

impl FloodNetwork {
    fn new(run: FloodRunParams) -> Self {
        let mut machines = [0, 1, 2].map(machine);
        for number in [VICTIM, SERVERS] {
            for port in [DOWNLOAD_PORT, UPLOAD_PORT] {
                let listen = ListenConfig { addr: None, port, backlog: BACKLOG };
                let host = machines[number].host();
                let listener = host.listen(listen).unwrap();
                let on = number == VICTIM && run.holder != ConnHolder::Host;
                host.set_listener_option(listener, ListenerOption::SetupOffload(on));
                let on = run.holder == ConnHolder::SetUpAndTornDown;
                host.set_listener_option(listener, ListenerOption::TeardownOffload(on));
            }
        }
        let link = EthernetAddrs { source: mac(CLIENTS), destination: mac(VICTIM) };
        let mut sim = Self {
            run,
            now: Instant::from_millis(1000),
            machines,
            in_flight: Default::default(),
            attacker: Attacker::new(run.kind, link, addr(VICTIM)),
            attacking: false,
            due_nanoframes: 0,
            greeted: BTreeSet::new(),
            senders: Default::default(),
            unspliced: BTreeMap::new(),
            splices: vec![],
            received_bytes: 0,
            errors: 0,
            replies_to_unknown: 0,
        };
        let sessions = if run.holder == ConnHolder::SetUpAndTornDown { SHORT } else { LONG };
        (0..sessions).for_each(|i| sim.connect(i));
        sim
    }

    fn connect(&mut self, i: usize) {
        let port = if i % 2 == 0 || self.run.holder == ConnHolder::SetUpAndTornDown {
            DOWNLOAD_PORT
        } else {
            UPLOAD_PORT
        };
        let to = Endpoint { addr: addr(VICTIM).into(), port };
        self.machines[CLIENTS].host().connect(self.now, to).unwrap();
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.flood();
            for number in 0..3 {
                while self.in_flight[number].front().is_some_and(|(at, _)| *at <= self.now) {
                    let (_, frame) = self.in_flight[number].pop_front().unwrap();
                    self.machines[number].receive_frame(frame);
                }
                for frame in self.machines[number].tick(self.now) {
                    self.deliver(number, frame);
                }
                for notice in std::mem::take(&mut self.machines[number].notices.0) {
                    self.handle_notice(number, notice);
                }
                for &socket in &self.senders[number] {
                    let host = self.machines[number].host();
                    let room = host.send_room(socket);
                    if room > 0 {
                        host.send(self.now, socket, Bytes::from(vec![0; room])).ok();
                    }
                }
            }
            self.now += TICK;
        }
    }

    fn flood(&mut self) {
        if !self.attacking {
            return;
        }
        self.due_nanoframes += self.run.per_s * TICK.as_nanos();
        while self.due_nanoframes >= BURST * 1_000_000_000 {
            self.due_nanoframes -= BURST * 1_000_000_000;
            for _ in 0..BURST {
                self.machines[VICTIM].receive_frame(self.attacker.frame());
            }
        }
    }

    /// Delivers a frame that a machine has sent.
    fn deliver(&mut self, from: usize, frame: Vec<u8>) {
        let sent = attack::parse_sent(&frame);
        if let Some((tuple, segment)) = sent.filter(|_| from == VICTIM) {
            let client = tuple.remote.addr == addr(CLIENTS);
            if !client && tuple.remote.addr != addr(SERVERS) {
                self.replies_to_unknown += 1;
                return;
            }
            let still = client
                && tuple.local.port == DOWNLOAD_PORT
                && self.run.holder != ConnHolder::SetUpAndTornDown;
            self.attacker.observe(tuple, &segment, still);
        }
        for to in (0..3).filter(|&to| to != from) {
            if frame[0] & 1 == 1 || frame[..6] == mac(to) {
                self.in_flight[to].push_back((self.now + DELAY, frame.clone()));
            }
        }
    }

    fn handle_notice(&mut self, number: usize, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket)
                if number == VICTIM && self.run.holder == ConnHolder::Spliced =>
            {
                let port = self.port(number, socket);
                let to = Endpoint { addr: addr(SERVERS).into(), port };
                let upstream = self.machines[VICTIM].host().connect(self.now, to).unwrap();
                self.unspliced.insert(upstream, socket);
            }
            Notice::Accepted(_, socket) => {
                if self.run.holder != ConnHolder::SetUpAndTornDown
                    && self.port(number, socket) == DOWNLOAD_PORT
                {
                    self.senders[number].push(socket);
                }
                self.serve(number, socket);
            }
            Notice::Socket(socket) => match number {
                CLIENTS => self.use_client(socket),
                VICTIM if self.run.holder == ConnHolder::Spliced => self.splice(socket),
                _ => self.serve(number, socket),
            },
            Notice::Spliced(id) => self.splices.push(id),
            Notice::SpliceRefused(..) | Notice::SpliceClosed(_) => self.errors += 1,
            // There are no files and no UDP.
            _ => {}
        }
    }

    fn port(&mut self, number: usize, socket: SocketId) -> u16 {
        self.machines[number].host().local(socket).map_or(0, |local| local.port)
    }

    /// Handles readiness of a client's socket.
    fn use_client(&mut self, socket: SocketId) {
        let ready = self.machines[CLIENTS].host().readiness(socket);
        let host = self.machines[CLIENTS].host();
        self.errors += u64::from(ready.error.is_some());
        if ready.writable && self.greeted.insert(socket) {
            host.send(self.now, socket, Bytes::from_static(b"?")).unwrap();
            if host.remote(socket).is_some_and(|remote| remote.port == UPLOAD_PORT) {
                self.senders[CLIENTS].push(socket);
            }
        }
        self.received_bytes += read(host, socket);
        if host.readiness(socket).peer_closed && self.greeted.remove(&socket) {
            host.close(self.now, socket);
            self.connect(0);
        }
    }

    /// Handles readiness of a server's socket.
    fn serve(&mut self, number: usize, socket: SocketId) {
        let host = self.machines[number].host();
        let bytes = read(host, socket);
        if self.run.holder != ConnHolder::SetUpAndTornDown {
            self.errors += u64::from(host.readiness(socket).error.is_some());
            self.received_bytes += bytes;
        } else if bytes > 0 {
            host.send(self.now, socket, Bytes::from_static(&[0; RESPONSE])).unwrap();
            host.close(self.now, socket);
        }
    }

    /// Splices a client's connection once the proxy's connection to the server is established.
    fn splice(&mut self, upstream: SocketId) {
        let host = self.machines[VICTIM].host();
        if host.readiness(upstream).writable {
            if let Some(socket) = self.unspliced.remove(&upstream) {
                host.nsplice(self.now, socket, upstream, Duration::from_secs(60)).unwrap();
            }
        }
    }
}

fn read(host: &mut Host, socket: SocketId) -> u64 {
    let mut sum = 0;
    loop {
        let bytes = host.peek(socket).len();
        if bytes == 0 {
            return sum;
        }
        host.consume(socket, bytes);
        sum += bytes as u64;
    }
}

/// The result of a run.
struct FloodOutcome {
    sim: FloodNetwork,
    /// Bytes that applications received in the measured second.
    bytes: u64,
    /// Counters of the victim before that second.
    before: BTreeMap<&'static str, u64>,
}

impl FloodOutcome {
    /// Returns the increase of a counter of the victim.
    fn moved(&self, name: &str) -> u64 {
        let victim = &self.sim.machines[VICTIM];
        victim.count(name) - self.before.get(name).copied().unwrap_or(0)
    }

    fn gauge(&self, name: &str) -> u64 {
        self.sim.machines[VICTIM].count(name)
    }
}

/// Runs the connections for half a second, then for the measured second, with the flood if
/// `attack`.
fn run(run: FloodRunParams, attack: bool) -> FloodOutcome {
    let mut sim = FloodNetwork::new(run);
    if run.kind == FloodKind::Ack && run.holder == ConnHolder::Host {
        // Overflow the SYN cache, so that the host checks acknowledgments for cookies.
        let link = EthernetAddrs { source: mac(CLIENTS), destination: mac(VICTIM) };
        let mut syns = Attacker::new(FloodKind::Syn, link, addr(VICTIM));
        sim.run_for(Duration::from_millis(100));
        (0..2 * BACKLOG).for_each(|_| sim.machines[VICTIM].receive_frame(syns.frame()));
    }
    sim.run_for(Duration::from_millis(500));
    let mut before = BTreeMap::new();
    let victim = &sim.machines[VICTIM];
    victim.visit(&mut |name, value| *before.entry(name).or_default() += value);
    let got = sim.received_bytes;
    assert_eq!((sim.errors, victim.overruns), (0, 0), "before {run:?}");
    sim.attacking = attack;
    sim.run_for(Duration::from_secs(1));
    let bytes = sim.received_bytes - got;
    // Time to handle the last flood frames.
    sim.attacking = false;
    sim.run_for(Duration::from_millis(20));
    FloodOutcome { sim, bytes, before }
}

/// Returns the share of the goodput that is left during the flood, and the result of the flooded
/// run.
fn goodput_share(what: FloodRunParams) -> (f64, FloodOutcome) {
    let (calm, flooded) = (run(what, false), run(what, true));
    let share = flooded.bytes as f64 / calm.bytes as f64;
    let sim = &flooded.sim;
    eprintln!(
        "{what:?}: {share:.3} of {:.1} MB, {} strays, {} aimed, {} overruns, {} answers",
        calm.bytes as f64 * 1e-6,
        sim.attacker.unmatched,
        sim.attacker.aimed,
        sim.machines[VICTIM].overruns,
        sim.replies_to_unknown
    );
    (share, flooded)
}

/// Asserts that at least 90 % of the goodput is left, no ring overflowed, no connection failed, and
/// tables are bounded.
fn assert_goodput_holds(way: ConnHolder, kind: FloodKind, per_s: u64) -> FloodOutcome {
    let run = FloodRunParams { holder: way, kind, per_s };
    let (share, outcome) = goodput_share(run);
    assert!(share >= 0.9, "{share:.3} of the goodput is left: {run:?}");
    let sim = &outcome.sim;
    assert_eq!((sim.errors, sim.machines[VICTIM].overruns), (0, 0), "{run:?}");
    let sent = sim.attacker.unmatched + sim.attacker.aimed;
    assert!(sent > per_s - 2 * BURST, "{sent}");
    assert!(outcome.gauge("connections_half_open") <= 2 * BACKLOG as u64);
    let connections = outcome.gauge("connections") + 2 * outcome.gauge("splice_pairs");
    match way {
        ConnHolder::Host | ConnHolder::SetUp => assert_eq!(connections, LONG as u64),
        ConnHolder::Spliced => assert_eq!(connections, 2 * LONG as u64),
        ConnHolder::SetUpAndTornDown => assert!(connections <= SHORT as u64),
    }
    outcome
}

/// The host answers all SYNs, those beyond the SYN cache with cookies, and opens no connection.
#[test]
fn syns_for_the_host() {
    for kind in [FloodKind::Syn, FloodKind::SynOnLink] {
        let outcome = assert_goodput_holds(ConnHolder::Host, kind, HALF_OF_THE_HOST);
        let cached = outcome.moved("tcp_syns_cached");
        assert!(cached <= BACKLOG as u64);
        let sent = outcome.sim.attacker.unmatched;
        assert_eq!(outcome.moved("tcp_syn_cookies_sent") + cached, sent);
        assert_eq!(outcome.moved("tcp_passive_opens"), 0);
    }
}

/// If the device answers SYNs, the host sees none of them.
#[test]
fn syns_for_the_device() {
    for way in [ConnHolder::SetUp, ConnHolder::SetUpAndTornDown, ConnHolder::Spliced] {
        let outcome = assert_goodput_holds(way, FloodKind::Syn, HALF_OF_THE_DEVICE_SYN);
        let sent = outcome.sim.attacker.unmatched;
        let honest = outcome.moved("setup_accepted");
        let answered = outcome.moved("setup_syns_answered") - sent;
        assert!(answered.abs_diff(honest) <= SHORT as u64, "{answered} and {honest}");
        assert_eq!(outcome.moved("tcp_syns_cached") + outcome.moved("tcp_syn_cookies_sent"), 0);
        assert_eq!(outcome.moved("setup_syns_dropped"), 0);
        assert_eq!(outcome.moved("tcp_syn_cookies_failed"), 0);
    }
}

/// No guessed cookie opens a connection; each guess is counted, and few are answered.
#[test]
fn forged_acknowledgments() {
    for way in CONN_HOLDERS {
        let outcome = assert_goodput_holds(way, FloodKind::Ack, HALF_OF_THE_DEVICE);
        let guesses = outcome.sim.attacker.unmatched;
        let unknown = outcome.moved("tcp_no_connection");
        if way == ConnHolder::SetUpAndTornDown {
            // Some frames are aimed at connections that are already closed.
            assert!(unknown >= guesses, "{unknown}");
        } else {
            assert_eq!(unknown, guesses, "{way:?}");
        }
        if way == ConnHolder::Host {
            assert_eq!(outcome.moved("tcp_syn_cookies_failed"), guesses);
            assert_eq!(outcome.moved("tcp_passive_opens"), 0);
        } else {
            assert!(outcome.moved("setup_passed_acks") >= guesses, "{way:?}");
            assert_eq!(outcome.moved("tcp_syn_cookies_failed"), 0, "the host sent no cookie");
        }
        if way != ConnHolder::SetUpAndTornDown {
            assert_eq!(outcome.moved("setup_established"), 0, "{way:?}");
        }
        let answered = outcome.moved("tcp_out_rsts");
        assert_eq!(answered + outcome.moved("tcp_out_rsts_limited"), unknown);
        assert!(answered <= 2 * u64::from(RESETS_PER_S));
        let aimed = outcome.sim.attacker.aimed;
        match way {
            ConnHolder::Host | ConnHolder::SetUp => {
                assert_eq!(outcome.moved("tcp_out_of_window"), aimed)
            }
            ConnHolder::Spliced => assert_eq!(outcome.moved("splice_dropped_out_of_window"), aimed),
            ConnHolder::SetUpAndTornDown => assert!(outcome.moved("teardown_out_of_window") > 0),
        }
    }
}

/// RFC 5961 section 3: only a RST with the exact number resets a connection. Challenge ACKs are
/// limited to one per 500 ms and connection (section 7).
#[test]
fn forged_resets() {
    for way in CONN_HOLDERS {
        let outcome = assert_goodput_holds(way, FloodKind::Rst, HALF_OF_THE_DEVICE);
        let Attacker { aimed, in_window, .. } = outcome.sim.attacker;
        assert!(way == ConnHolder::SetUpAndTornDown || in_window > aimed / 10, "{in_window}");
        for died in ["teardown_reset_by_peer", "splice_reset_by_peer", "tcp_out_rsts"] {
            assert_eq!(outcome.moved(died), 0, "{died} {way:?}");
        }
        let (asked, limited, outside) = match way {
            ConnHolder::Host | ConnHolder::SetUp => {
                ("tcp_challenge_acks", "tcp_challenge_acks_limited", "tcp_out_of_window")
            }
            ConnHolder::Spliced => {
                let blind = outcome.moved("splice_dropped_blind_reset");
                assert_eq!(blind, aimed);
                ("splice_challenges", "splice_challenges_limited", "splice_dropped_out_of_window")
            }
            ConnHolder::SetUpAndTornDown => {
                assert!(outcome.moved("teardown_out_of_window") > 0);
                continue;
            }
        };
        let asked = outcome.moved(asked);
        assert!((1..=3 * LONG as u64).contains(&asked), "{asked}");
        assert_eq!(asked + outcome.moved(limited), in_window);
        let outside = outcome.moved(outside);
        assert_eq!(outside, if way == ConnHolder::Spliced { 0 } else { aimed - in_window });
    }
}

/// A device that is overloaded by SYNs still answers all of them.
#[test]
fn syns_for_a_busy_device() {
    let per_s = HALF_OF_THE_DEVICE_SYN * 7 / 4;
    let outcome = assert_goodput_holds(ConnHolder::SetUp, FloodKind::Syn, per_s);
    assert_eq!(outcome.moved("setup_syns_answered"), outcome.sim.attacker.unmatched);
    assert!(outcome.moved("device_overloads") > 0);
}

/// Shows that the model can fail: a rate that takes half of the device's time overloads the host.
#[test]
fn the_same_flood_overloads_the_host_without_setup_offload() {
    let run = FloodRunParams {
        holder: ConnHolder::Host,
        kind: FloodKind::Syn,
        per_s: HALF_OF_THE_DEVICE,
    };
    let (share, _) = goodput_share(run);
    assert!(share < 0.5, "{share}");
}
