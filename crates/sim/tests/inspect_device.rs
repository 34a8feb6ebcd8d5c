//! Inspection by host and device together: whatever a link drops, repeats and reorders, and whether
//! the device inspects or not, the application reads the same bytes and finds the same patterns.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::crypto::{CryptoProvider, Suite};
use abi::link::LinkCaps;
use abi::{Checksum, Refusal};
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Application, Cidr, Host, HostConfig, ListenConfig, Notice, SocketId, TlsVersion};
use nic::{DeviceConfig, L5oConfig};
use patterns::PatternSet;
use testkit::{
    LinkDestination, LinkFrame, LinkRule, PLAIN_LINK, TestMachine, TwoMachineNetwork, session_keys,
};
use wire::Endpoint;

/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;
const PATTERNS: [&str; 4] = ["needle", "pin", "pinpin", "nee"];

/// Reads everything, in runs as they come, and inspects each run before it reads it.
#[derive(Default)]
struct InspectingApp {
    socket: Option<SocketId>,
    read: Vec<u8>,
    found: Vec<(u16, u64)>,
}

impl Application for InspectingApp {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.socket = Some(socket);
        }
    }

    fn advance(&mut self, _: Instant, host: &mut Host) -> bool {
        let before = self.read.len();
        while let Some(socket) = self.socket {
            host.inspect(socket, &mut |found| self.found.push((found.pattern, found.end)));
            let bytes = host.peek(socket);
            if bytes.is_empty() {
                break;
            }
            self.read.extend_from_slice(bytes);
            let len = bytes.len();
            host.consume(socket, len);
        }
        self.read.len() > before
    }
}

type Network = TwoMachineNetwork<InspectingApp, InspectingApp, ()>;

/// Treatment of packets with payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Faithful,
    /// Drops, repeats and delays some.
    Rough(u64),
}

fn rule(link: Link) -> LinkRule {
    let mut prng = Prng::new(if let Link::Rough(seed) = link { seed } else { 0 });
    let mut held = VecDeque::new();
    Box::new(move |_, towards, LinkFrame { bytes, .. }| {
        let has_payload = bytes.len() > HEADERS && bytes[12..14] == [8, 0];
        let mut frames = vec![bytes];
        if link != Link::Faithful && towards == LinkDestination::Server && has_payload {
            match prng.next_u64() % 16 {
                0 => frames.clear(),
                1 => frames.push(frames[0].clone()),
                2 => held.extend(frames.drain(..)),
                3.. => frames.extend(held.pop_front()),
            }
        }
        let arrives = |bytes| {
            (Duration::ZERO, LinkFrame { bytes, checksum: Checksum::Good, segment_size: 0 })
        };
        frames.into_iter().map(arrives).collect()
    })
}

fn engine(inspect: bool) -> L5oConfig {
    L5oConfig { inspect, ..L5oConfig::new(Arc::new(crypto::Provider)) }
}

fn machine(number: u8, l5o: L5oConfig) -> (TestMachine, InspectingApp) {
    let l5o = Some(l5o);
    let device = DeviceConfig { file: None, l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) };
    let addr = [10, 0, 0, number].into();
    let config = HostConfig { addrs: vec![Cidr { addr, prefix_len: 24 }], ..HostConfig::default() };
    let link = LinkCaps { checksum: true, ..PLAIN_LINK };
    (TestMachine::new(config, device, link, number.into(), ()), InspectingApp::default())
}

/// Connects two machines, of which the server has this engine.
fn connect(server: L5oConfig) -> Network {
    let (client, server) = (machine(2, engine(true)), machine(1, server));
    let mut net = TwoMachineNetwork::new(Instant::from_millis(1000), client, server);
    net.link = rule(Link::Faithful);
    net.server.host().listen(ListenConfig { addr: None, port: 80, backlog: 8 }).unwrap();
    open_socket(&mut net);
    net
}

/// Opens another connection, which the applications use from now on.
fn open_socket(net: &mut Network) {
    let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 80 };
    let now = net.now;
    net.client.app.socket = Some(net.client.host().connect(now, remote).unwrap());
    net.settle();
}

/// Begins to inspect the server's connection.
fn inspect(net: &mut Network, set: &Arc<PatternSet>) {
    let (now, socket) = (net.now, net.server.app.socket.unwrap());
    net.server.host().start_inspection(now, socket, Arc::clone(set)).unwrap();
    net.settle();
}

/// Connects two machines, and begins to inspect at the server.
fn open(tls: Option<TlsVersion>, has_engine: bool, set: &Arc<PatternSet>) -> Network {
    let mut net = connect(engine(has_engine));
    let now = net.now;
    if let Some(version) = tls {
        let crypto: Arc<dyn CryptoProvider> = Arc::new(crypto::Provider);
        let keys = session_keys(version, Suite::Aes128Gcm, 0, &crypto);
        for (end, keys) in [&mut net.client, &mut net.server].into_iter().zip(keys) {
            let socket = end.app.socket.unwrap();
            end.host().attach_tls(now, socket, &keys).unwrap();
        }
    }
    inspect(&mut net, set);
    net
}

/// Sends `text` in pieces, until the server has read all of it.
fn transfer(net: &mut Network, text: &[u8], link: Link) {
    net.link = rule(link);
    let socket = net.client.app.socket.unwrap();
    let mut sent = 0;
    for _ in 0..10_000 {
        if sent < text.len() {
            let end = text.len().min(sent + 9000);
            let bytes = Bytes::copy_from_slice(&text[sent..end]);
            let now = net.now;
            sent += net.client.host().send(now, socket, bytes).unwrap();
        }
        net.settle();
        if net.server.app.read.len() >= text.len() {
            return;
        }
        net.now += Duration::from_millis(if sent < text.len() { 1 } else { 300 });
    }
    panic!("{} of {} bytes came", net.server.app.read.len(), text.len());
}

/// Returns bytes with many patterns and beginnings of patterns.
fn text(len: usize) -> Vec<u8> {
    let mut prng = Prng::new(7);
    let words = ["needle", "need", "pin", "pinpi", "-", " filler without any of them ", "n"];
    let mut text = Vec::new();
    while text.len() < len {
        let word = usize::try_from(prng.next_u64()).unwrap() % words.len();
        text.extend_from_slice(words[word].as_bytes());
        text.resize(text.len() + 300, b'.');
    }
    text
}

/// Returns the matches of one scan.
fn expected(set: &PatternSet, text: &[u8]) -> Vec<(u16, u64)> {
    let mut found = Vec::new();
    set.scan(set.start(), text, &mut |pattern, end| {
        found.push((u16::try_from(pattern).unwrap(), end as u64));
    });
    found
}

fn check(net: &Network, text: &[u8], expected: &[(u16, u64)]) {
    assert_eq!(net.server.app.read, text);
    assert_eq!(net.server.app.found, expected);
    let bytes = net.server.count("inspect_device_bytes") + net.server.count("inspect_host_bytes");
    assert_eq!(bytes, text.len() as u64);
    assert_eq!(net.server.count("inspect_matches"), expected.len() as u64);
    assert_eq!(net.server.count("inspect_claims_invalid"), 0);
}

const PROTOCOLS: [Option<TlsVersion>; 3] = [None, Some(TlsVersion::Tls12), Some(TlsVersion::Tls13)];

#[test]
fn the_device_inspects_a_faithful_stream() {
    let set = Arc::new(PatternSet::new(&PATTERNS).unwrap());
    let text = text(300_000);
    let matches = expected(&set, &text);
    assert!(matches.len() > 300, "{}", matches.len());
    for tls in PROTOCOLS {
        let mut net = open(tls, true, &set);
        transfer(&mut net, &text, Link::Faithful);
        check(&net, &text, &matches);
        assert_eq!(net.server.count("inspect_host_bytes"), 0, "{tls:?}");
        assert_eq!(net.server.count("inspect_began_anew"), 1, "{tls:?}");
    }
}

#[test]
fn without_the_device_the_result_is_the_same() {
    let set = Arc::new(PatternSet::new(&PATTERNS).unwrap());
    let text = text(300_000);
    for tls in PROTOCOLS {
        let mut net = open(tls, false, &set);
        transfer(&mut net, &text, Link::Faithful);
        check(&net, &text, &expected(&set, &text));
        assert_eq!(net.server.count("inspect_device_bytes"), 0, "{tls:?}");
        assert_eq!(net.server.count("inspect_sw"), 1, "{tls:?}");
    }
}

#[test]
fn loss_reordering_and_repetition_change_nothing() {
    let set = Arc::new(PatternSet::new(&PATTERNS).unwrap());
    let text = text(300_000);
    let matches = expected(&set, &text);
    for tls in PROTOCOLS {
        let mut by_device = 0;
        for seed in 0..20 {
            let mut net = open(tls, true, &set);
            transfer(&mut net, &text, Link::Rough(seed));
            check(&net, &text, &matches);
            by_device += net.server.count("inspect_device_bytes");
            assert!(net.server.count("inspect_began_anew") > 1, "{tls:?} {seed}");
        }
        let share = by_device * 100 / (20 * text.len() as u64);
        assert!(share >= 60, "{tls:?}: the device inspected {share} percent");
    }
}

/// More matches than a claim has room for: the host inspects those packets.
#[test]
fn too_many_matches_are_found_by_the_host() {
    let set = Arc::new(PatternSet::new(&["aa", "b"]).unwrap());
    let mut text = vec![b'a'; 20_000];
    text.extend([b'-'; 20_000]);
    text.push(b'b');
    for tls in PROTOCOLS {
        let mut net = open(tls, true, &set);
        transfer(&mut net, &text, Link::Faithful);
        check(&net, &text, &expected(&set, &text));
        let unreported = net.server.count("inspect_unreported_bytes");
        assert!((20_000..23_000).contains(&unreported), "{tls:?} {unreported}");
        assert!(net.server.count("inspect_device_bytes") > 17_000, "{tls:?}");
    }
}

#[test]
fn a_device_reset_changes_nothing() {
    let set = Arc::new(PatternSet::new(&PATTERNS).unwrap());
    let text = text(100_000);
    for tls in PROTOCOLS {
        let mut net = open(tls, true, &set);
        let (first, second) = text.split_at(50_003);
        transfer(&mut net, first, Link::Faithful);
        net.server.device().reset();
        net.settle();
        let before = net.server.count("inspect_device_bytes");
        assert_eq!(net.server.count("inspect_contexts"), 1, "requested again");
        let socket = net.client.app.socket.unwrap();
        let now = net.now;
        let sent = net.client.host().send(now, socket, Bytes::copy_from_slice(second));
        assert_eq!(sent, Ok(second.len()));
        for _ in 0..1000 {
            net.settle();
            net.now += Duration::from_millis(300);
        }
        check(&net, &text, &expected(&set, &text));
        assert!(net.server.count("inspect_device_bytes") > before + 40_000, "{tls:?}");
    }
}

/// The device has room for one context, which another connection holds at first.
#[test]
fn a_full_table_is_asked_again_when_there_is_room() {
    let set = Arc::new(PatternSet::new(&PATTERNS).unwrap());
    let text = text(200_000);
    let (before, after) = text.split_at(60_000);
    for has_room in [true, false] {
        let mut net = connect(L5oConfig { contexts_max: 1, ..engine(true) });
        inspect(&mut net, &set);
        let (first, now) = (net.server.app.socket.unwrap(), net.now);
        open_socket(&mut net);
        inspect(&mut net, &set);
        assert_eq!(net.server.count("inspect_device_refused"), 1);
        let second = net.server.app.socket.unwrap();
        let state = net.server.host().info(second).unwrap().inspection;
        assert_eq!(state, Some(Err(Refusal::TableFull)));
        transfer(&mut net, before, Link::Faithful);
        assert_eq!(net.server.count("inspect_device_bytes"), 0);
        let asked = net.server.count("inspect_device_asked_again");
        assert_eq!(asked, 1, "at twice the minimum, and not with each segment");
        if has_room {
            net.server.host().abort(now, first);
            net.settle();
        }
        net.server.app.read.clear();
        transfer(&mut net, after, Link::Faithful);
        net.server.app.read.splice(0..0, before.iter().copied());
        check(&net, &text, &expected(&set, &text));
        let state = net.server.host().info(second).unwrap().inspection;
        assert_eq!(state.unwrap().is_ok(), has_room);
        let by_device = net.server.count("inspect_device_bytes");
        assert_eq!(by_device > 60_000, has_room, "{by_device} bytes inspected by the device");
        let asked = net.server.count("inspect_device_asked_again");
        assert_eq!(asked, if has_room { 2 } else { 3 });
    }
}
