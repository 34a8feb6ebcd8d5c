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
use host::{Cidr, Config, Host, Listen, ListenerOption, Notice, SocketId, SpliceId, TcpConfig};
use nic::DeviceConfig;
use wire::Endpoint;
use wire::emit::Link;

use attack::{Attacker, Kind};
use machine::{HALF_OF_THE_DEVICE, HALF_OF_THE_DEVICE_SYN, HALF_OF_THE_HOST, Machine, TICK};

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
const DOWN: u16 = 80;
/// Port on which clients send.
const UP: u16 = 81;
/// All kinds of connections.
const WAYS: [Way; 4] = [Way::Host, Way::SetUp, Way::TornDown, Way::Spliced];
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
enum Way {
    /// The host, from the beginning.
    Host,
    /// The host, after set-up by the device.
    SetUp,
    /// Short connections that the device sets up and tears down.
    TornDown,
    /// The device, which splices them.
    Spliced,
}

/// Parameters of a run: the kind of connections, the kind of flood, and its frames per second.
#[derive(Clone, Copy, Debug)]
struct Run {
    way: Way,
    kind: Kind,
    per_s: u64,
}

/// The machines, their applications, and the network.
struct World {
    run: Run,
    now: Instant,
    machines: [Machine; 3],
    /// Frames in flight to each machine, with their times of arrival.
    flying: [VecDeque<(Instant, Vec<u8>)>; 3],
    attacker: Attacker,
    attacking: bool,
    /// Flood frames due, in billionths of a frame.
    due: u64,
    /// Client sockets that have sent their first byte.
    greeted: BTreeSet<SocketId>,
    /// Sockets of each machine that always send.
    senders: [Vec<SocketId>; 3],
    /// Socket pairs of the proxy that are not spliced yet: the server's socket, and the client's.
    joined: BTreeMap<SocketId, SocketId>,
    splices: Vec<SpliceId>,
    /// Bytes that applications have received.
    got: u64,
    errors: u64,
    /// Frames of the victim to addresses that do not exist.
    strange: u64,
}

fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(number).unwrap()]
}

fn addr(number: usize) -> Ipv4Addr {
    [10, 0, 0, 10 + u8::try_from(number).unwrap()].into()
}

fn machine(number: usize) -> Machine {
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
    let config = Config { addrs, gateways, tcp, ..Config::default() };
    Machine::new(DeviceConfig::new(mac(number)), config, number as u64 + 5, number != VICTIM)
}

impl World {
    fn new(run: Run) -> Self {
        let mut machines = [0, 1, 2].map(machine);
        for number in [VICTIM, SERVERS] {
            for port in [DOWN, UP] {
                let listen = Listen { addr: None, port, backlog: BACKLOG };
                let host = machines[number].host();
                let listener = host.listen(listen).unwrap();
                let on = number == VICTIM && run.way != Way::Host;
                host.set_listener_option(listener, ListenerOption::SetupOffload(on));
                let on = run.way == Way::TornDown;
                host.set_listener_option(listener, ListenerOption::TeardownOffload(on));
            }
        }
        let link = Link { source: mac(CLIENTS), destination: mac(VICTIM) };
        let mut world = Self {
            run,
            now: Instant::from_millis(1000),
            machines,
            flying: Default::default(),
            attacker: Attacker::new(run.kind, link, addr(VICTIM)),
            attacking: false,
            due: 0,
            greeted: BTreeSet::new(),
            senders: Default::default(),
            joined: BTreeMap::new(),
            splices: vec![],
            got: 0,
            errors: 0,
            strange: 0,
        };
        let sessions = if run.way == Way::TornDown { SHORT } else { LONG };
        (0..sessions).for_each(|i| world.connect(i));
        world
    }

    fn connect(&mut self, i: usize) {
        let port = if i % 2 == 0 || self.run.way == Way::TornDown { DOWN } else { UP };
        let to = Endpoint { addr: addr(VICTIM).into(), port };
        self.machines[CLIENTS].host().connect(self.now, to).unwrap();
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.flood();
            for number in 0..3 {
                while self.flying[number].front().is_some_and(|(at, _)| *at <= self.now) {
                    let (_, frame) = self.flying[number].pop_front().unwrap();
                    self.machines[number].arrive(frame);
                }
                for frame in self.machines[number].tick(self.now) {
                    self.carry(number, frame);
                }
                for notice in std::mem::take(&mut self.machines[number].notices.0) {
                    self.notice(number, notice);
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
        self.due += self.run.per_s * TICK.as_nanos();
        while self.due >= BURST * 1_000_000_000 {
            self.due -= BURST * 1_000_000_000;
            for _ in 0..BURST {
                self.machines[VICTIM].arrive(self.attacker.frame());
            }
        }
    }

    /// Delivers a frame that a machine has sent.
    fn carry(&mut self, from: usize, frame: Vec<u8>) {
        let sent = attack::sent(&frame);
        if let Some((tuple, segment)) = sent.filter(|_| from == VICTIM) {
            let client = tuple.remote.addr == addr(CLIENTS);
            if !client && tuple.remote.addr != addr(SERVERS) {
                self.strange += 1;
                return;
            }
            let still = client && tuple.local.port == DOWN && self.run.way != Way::TornDown;
            self.attacker.see(tuple, &segment, still);
        }
        for to in (0..3).filter(|&to| to != from) {
            if frame[0] & 1 == 1 || frame[..6] == mac(to) {
                self.flying[to].push_back((self.now + DELAY, frame.clone()));
            }
        }
    }

    fn notice(&mut self, number: usize, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) if number == VICTIM && self.run.way == Way::Spliced => {
                let port = self.port(number, socket);
                let to = Endpoint { addr: addr(SERVERS).into(), port };
                let upstream = self.machines[VICTIM].host().connect(self.now, to).unwrap();
                self.joined.insert(upstream, socket);
            }
            Notice::Accepted(_, socket) => {
                if self.run.way != Way::TornDown && self.port(number, socket) == DOWN {
                    self.senders[number].push(socket);
                }
                self.serve(number, socket);
            }
            Notice::Socket(socket) => match number {
                CLIENTS => self.use_client(socket),
                VICTIM if self.run.way == Way::Spliced => self.splice(socket),
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
            if host.remote(socket).is_some_and(|remote| remote.port == UP) {
                self.senders[CLIENTS].push(socket);
            }
        }
        self.got += read(host, socket);
        if host.readiness(socket).peer_closed && self.greeted.remove(&socket) {
            host.close(self.now, socket);
            self.connect(0);
        }
    }

    /// Handles readiness of a server's socket.
    fn serve(&mut self, number: usize, socket: SocketId) {
        let host = self.machines[number].host();
        let bytes = read(host, socket);
        if self.run.way != Way::TornDown {
            self.errors += u64::from(host.readiness(socket).error.is_some());
            self.got += bytes;
        } else if bytes > 0 {
            host.send(self.now, socket, Bytes::from_static(&[0; RESPONSE])).unwrap();
            host.close(self.now, socket);
        }
    }

    /// Splices a client's connection once the proxy's connection to the server is established.
    fn splice(&mut self, upstream: SocketId) {
        let host = self.machines[VICTIM].host();
        if host.readiness(upstream).writable {
            if let Some(socket) = self.joined.remove(&upstream) {
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
struct Outcome {
    world: World,
    /// Bytes that applications received in the measured second.
    bytes: u64,
    /// Counters of the victim before that second.
    before: BTreeMap<&'static str, u64>,
}

impl Outcome {
    /// Returns the increase of a counter of the victim.
    fn moved(&self, name: &str) -> u64 {
        let victim = &self.world.machines[VICTIM];
        victim.count(name) - self.before.get(name).copied().unwrap_or(0)
    }

    fn gauge(&self, name: &str) -> u64 {
        self.world.machines[VICTIM].count(name)
    }
}

/// Runs the connections for half a second, then for the measured second, with the flood if
/// `attack`.
fn run(run: Run, attack: bool) -> Outcome {
    let mut world = World::new(run);
    if run.kind == Kind::Ack && run.way == Way::Host {
        // Overflow the SYN cache, so that the host checks acknowledgments for cookies.
        let link = Link { source: mac(CLIENTS), destination: mac(VICTIM) };
        let mut syns = Attacker::new(Kind::Syn, link, addr(VICTIM));
        world.run_for(Duration::from_millis(100));
        (0..2 * BACKLOG).for_each(|_| world.machines[VICTIM].arrive(syns.frame()));
    }
    world.run_for(Duration::from_millis(500));
    let mut before = BTreeMap::new();
    let victim = &world.machines[VICTIM];
    victim.visit(&mut |name, value| *before.entry(name).or_default() += value);
    let got = world.got;
    assert_eq!((world.errors, victim.overruns), (0, 0), "before {run:?}");
    world.attacking = attack;
    world.run_for(Duration::from_secs(1));
    let bytes = world.got - got;
    // Time to handle the last flood frames.
    world.attacking = false;
    world.run_for(Duration::from_millis(20));
    Outcome { world, bytes, before }
}

/// Returns the share of the goodput that is left during the flood, and the result of the flooded
/// run.
fn share(what: Run) -> (f64, Outcome) {
    let (calm, flooded) = (run(what, false), run(what, true));
    let share = flooded.bytes as f64 / calm.bytes as f64;
    let world = &flooded.world;
    eprintln!(
        "{what:?}: {share:.3} of {:.1} MB, {} strays, {} aimed, {} overruns, {} answers",
        calm.bytes as f64 * 1e-6,
        world.attacker.strays,
        world.attacker.aimed,
        world.machines[VICTIM].overruns,
        world.strange
    );
    (share, flooded)
}

/// Asserts that at least 90 % of the goodput is left, no ring overflowed, no connection failed, and
/// tables are bounded.
fn holds(way: Way, kind: Kind, per_s: u64) -> Outcome {
    let run = Run { way, kind, per_s };
    let (share, outcome) = share(run);
    assert!(share >= 0.9, "{share:.3} of the goodput is left: {run:?}");
    let world = &outcome.world;
    assert_eq!((world.errors, world.machines[VICTIM].overruns), (0, 0), "{run:?}");
    let sent = world.attacker.strays + world.attacker.aimed;
    assert!(sent > per_s - 2 * BURST, "{sent}");
    assert!(outcome.gauge("connections_half_open") <= 2 * BACKLOG as u64);
    let connections = outcome.gauge("connections") + 2 * outcome.gauge("splice_pairs");
    match way {
        Way::Host | Way::SetUp => assert_eq!(connections, LONG as u64),
        Way::Spliced => assert_eq!(connections, 2 * LONG as u64),
        Way::TornDown => assert!(connections <= SHORT as u64),
    }
    outcome
}

/// The host answers all SYNs, those beyond the SYN cache with cookies, and opens no connection.
#[test]
fn syns_for_the_host() {
    for kind in [Kind::Syn, Kind::SynOnLink] {
        let outcome = holds(Way::Host, kind, HALF_OF_THE_HOST);
        let cached = outcome.moved("tcp_syns_cached");
        assert!(cached <= BACKLOG as u64);
        let sent = outcome.world.attacker.strays;
        assert_eq!(outcome.moved("tcp_syn_cookies_sent") + cached, sent);
        assert_eq!(outcome.moved("tcp_passive_opens"), 0);
    }
}

/// If the device answers SYNs, the host sees none of them.
#[test]
fn syns_for_the_device() {
    for way in [Way::SetUp, Way::TornDown, Way::Spliced] {
        let outcome = holds(way, Kind::Syn, HALF_OF_THE_DEVICE_SYN);
        let sent = outcome.world.attacker.strays;
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
    for way in WAYS {
        let outcome = holds(way, Kind::Ack, HALF_OF_THE_DEVICE);
        let guesses = outcome.world.attacker.strays;
        let unknown = outcome.moved("tcp_no_connection");
        if way == Way::TornDown {
            // Some frames are aimed at connections that are already closed.
            assert!(unknown >= guesses, "{unknown}");
        } else {
            assert_eq!(unknown, guesses, "{way:?}");
        }
        if way == Way::Host {
            assert_eq!(outcome.moved("tcp_syn_cookies_failed"), guesses);
            assert_eq!(outcome.moved("tcp_passive_opens"), 0);
        } else {
            assert!(outcome.moved("setup_passed_acks") >= guesses, "{way:?}");
            assert_eq!(outcome.moved("tcp_syn_cookies_failed"), 0, "the host sent no cookie");
        }
        if way != Way::TornDown {
            assert_eq!(outcome.moved("setup_established"), 0, "{way:?}");
        }
        let answered = outcome.moved("tcp_out_rsts");
        assert_eq!(answered + outcome.moved("tcp_out_rsts_limited"), unknown);
        assert!(answered <= 2 * u64::from(RESETS_PER_S));
        let aimed = outcome.world.attacker.aimed;
        match way {
            Way::Host | Way::SetUp => assert_eq!(outcome.moved("tcp_out_of_window"), aimed),
            Way::Spliced => assert_eq!(outcome.moved("splice_dropped_out_of_window"), aimed),
            Way::TornDown => assert!(outcome.moved("teardown_out_of_window") > 0),
        }
    }
}

/// RFC 5961 section 3: only a RST with the exact number resets a connection. Challenge ACKs are
/// limited to one per 500 ms and connection (section 7).
#[test]
fn forged_resets() {
    for way in WAYS {
        let outcome = holds(way, Kind::Rst, HALF_OF_THE_DEVICE);
        let Attacker { aimed, in_window, .. } = outcome.world.attacker;
        assert!(way == Way::TornDown || in_window > aimed / 10, "{in_window}");
        for died in ["teardown_reset_by_peer", "splice_reset_by_peer", "tcp_out_rsts"] {
            assert_eq!(outcome.moved(died), 0, "{died} {way:?}");
        }
        let (asked, limited, outside) = match way {
            Way::Host | Way::SetUp => {
                ("tcp_challenge_acks", "tcp_challenge_acks_limited", "tcp_out_of_window")
            }
            Way::Spliced => {
                let blind = outcome.moved("splice_dropped_blind_reset");
                assert_eq!(blind, aimed);
                ("splice_challenges", "splice_challenges_limited", "splice_dropped_out_of_window")
            }
            Way::TornDown => {
                assert!(outcome.moved("teardown_out_of_window") > 0);
                continue;
            }
        };
        let asked = outcome.moved(asked);
        assert!((1..=3 * LONG as u64).contains(&asked), "{asked}");
        assert_eq!(asked + outcome.moved(limited), in_window);
        let outside = outcome.moved(outside);
        assert_eq!(outside, if way == Way::Spliced { 0 } else { aimed - in_window });
    }
}

/// A device that is overloaded by SYNs still answers all of them.
#[test]
fn syns_for_a_busy_device() {
    let per_s = HALF_OF_THE_DEVICE_SYN * 7 / 4;
    let outcome = holds(Way::SetUp, Kind::Syn, per_s);
    assert_eq!(outcome.moved("setup_syns_answered"), outcome.world.attacker.strays);
    assert!(outcome.moved("device_overloads") > 0);
}

/// Shows that the model can fail: a rate that takes half of the device's time overloads the host.
#[test]
fn without_set_up_on_the_device_the_same_flood_hurts() {
    let run = Run { way: Way::Host, kind: Kind::Syn, per_s: HALF_OF_THE_DEVICE };
    let (share, _) = share(run);
    assert!(share < 0.5, "{share}");
}
