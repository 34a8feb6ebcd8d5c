//! An initiator and a scripted controller: two hosts with their devices, and a wire without delay.

mod target;

use abi::Checksum;
use abi::port::{RxFrame, WireCaps};
use apps::nvme::initiator::{Config, Done, Event, Initiator, Request, State};
use base::{Duration, Instant};
use crypto::Provider;
use host::{Cidr, Host, TlsClient, TlsServer};
use nic::{Device, DeviceConfig, L5oConfig};
use std::sync::Arc;
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

pub(crate) use self::target::{Answer, Target};

const WIRE: WireCaps =
    WireCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };
pub(crate) const PORT: u16 = 4420;
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.example:disks";

/// A host with its device.
pub(crate) struct Node {
    pub(crate) host: Host,
    device: Device,
}

impl Node {
    /// `offload`: its device has the engine for protocols above TCP.
    fn new(number: u8, offload: bool) -> Self {
        let mut config = DeviceConfig::new([2, 0, 0, 0, 0, number]);
        config.l5o = offload.then(|| L5oConfig::new(Arc::new(Provider)));
        let device = Device::new(config, WIRE);
        let config = host::Config {
            addrs: vec![Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 }],
            ..host::Config::default()
        };
        Self { host: Host::new(config, &device.capabilities(), number.into()), device }
    }

    /// Moves operations and events until nothing moves; gives the frames for the wire.
    fn run(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut moved = false;
            while let Some(op) = self.host.poll_op(now) {
                self.device.handle_op(now, 0, op);
                moved = true;
            }
            while let Some(frame) = self.device.poll_frame(now) {
                let mut bytes = vec![0; frame.len()];
                frame.copy_to(&mut bytes);
                frames.push(bytes);
                moved = true;
            }
            while let Some((_, event)) = self.device.poll_event() {
                self.host.handle_event(now, event);
                moved = true;
            }
            while let Some(packet) = self.host.poll_recycle() {
                self.device.pool().put(packet);
            }
            if !moved {
                return frames;
            }
        }
    }

    /// The device loses all that it has.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
    }

    fn receive(&mut self, now: Instant, frame: &[u8]) {
        let packet = self.device.pool().copy(frame).expect("frames fit buffers");
        let checksum = Checksum::Unchecked;
        self.device.handle_frame(now, RxFrame { packet, checksum, segment_size: 0 });
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.host.poll_timeout().into_iter().chain(self.device.poll_timeout(now)).min()
    }
}

/// Both ends.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) initiator: Initiator,
    pub(crate) target: Target,
    pub(crate) done: Vec<Done>,
    pub(crate) events: Vec<Event>,
    /// Frames are lost.
    pub(crate) cut: bool,
    /// What the initiator sends from a port is lost.
    pub(crate) lost_port: Option<u16>,
}

pub(crate) fn config() -> Config {
    let host = Nqn::new("nqn.2026-11.example:host").unwrap();
    let mut config = Config::new(host, [7; 16], Nqn::new(SUBSYSTEM).unwrap(), Arc::new(Provider));
    config.queues = 2;
    config.queue_entries = 32;
    config
}

pub(crate) fn remote() -> Endpoint {
    Endpoint { addr: [10, 77, 0, 2].into(), port: PORT }
}

impl Net {
    pub(crate) fn new(config: Config) -> Self {
        Self::with(config, false, false)
    }

    /// With devices that offload, and over TLS, or without.
    pub(crate) fn with(mut config: Config, offload: bool, tls: bool) -> Self {
        let (client, mut server) = (Node::new(1, offload), Node::new(2, offload));
        let ends = tls.then(|| testkit::tls13(vec!["target.test".into()], b"nvme"));
        let (ends, tls_client) = ends.map_or((None, None), |(server, client)| {
            let (mut server, mut client) = ((*server).clone(), (*client).clone());
            server.enable_secret_extraction = true;
            client.enable_secret_extraction = true;
            let crypto = Arc::new(Provider);
            let server = TlsServer { config: Arc::new(server), crypto: Arc::clone(&crypto) as _ };
            let name = "target.test".try_into().unwrap();
            (Some(server), Some(TlsClient { config: Arc::new(client), name, crypto }))
        });
        config.tls = tls_client;
        let target = Target::new(&mut server.host, ends);
        let initiator = Initiator::new(config, remote());
        Self {
            now: Instant::ZERO + Duration::from_secs(1),
            client,
            server,
            initiator,
            target,
            done: Vec::new(),
            events: Vec::new(),
            cut: false,
            lost_port: None,
        }
    }

    /// Connected, and with nothing to do.
    pub(crate) fn live(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        Self::new(config).connected()
    }

    pub(crate) fn connected(self) -> Self {
        let mut net = self;
        net.initiator.connect(&mut net.client.host, net.now);
        net.settle();
        assert_eq!(net.events, [Event::Connected], "{:?}", net.initiator.state());
        assert_eq!(net.initiator.state(), State::Live);
        net.events.clear();
        net
    }

    /// Everything that happens without time.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for frame in self.client.run(self.now) {
                moved = true;
                // Behind the headers of Ethernet and IPv4.
                let port = frame.get(34..36).map(|port| u16::from_be_bytes([port[0], port[1]]));
                if !self.cut && (self.lost_port.is_none() || port != self.lost_port) {
                    self.server.receive(self.now, &frame);
                }
            }
            for frame in self.server.run(self.now) {
                moved = true;
                if !self.cut {
                    self.client.receive(self.now, &frame);
                }
            }
            while let Some(notice) = self.client.host.poll_notice() {
                self.initiator.handle_notice(&mut self.client.host, self.now, &notice);
                moved = true;
            }
            while let Some(notice) = self.server.host.poll_notice() {
                self.target.handle_notice(&mut self.server.host, self.now, &notice);
                moved = true;
            }
            self.done.extend(core::iter::from_fn(|| self.initiator.poll_done()));
            self.events.extend(core::iter::from_fn(|| self.initiator.poll_event()));
            if !moved {
                return;
            }
        }
    }

    /// Time goes on to the next thing that is due, but not beyond `limit`; says whether there was
    /// one.
    pub(crate) fn step(&mut self, limit: Instant) -> bool {
        let timeouts = [
            self.client.poll_timeout(self.now),
            self.server.poll_timeout(self.now),
            self.initiator.poll_timeout(),
        ];
        let Some(next) = timeouts.into_iter().flatten().min().filter(|&at| at <= limit) else {
            self.now = limit;
            return false;
        };
        self.now = self.now.max(next);
        self.client.host.handle_timeout(self.now);
        self.server.host.handle_timeout(self.now);
        if self.initiator.poll_timeout().is_some_and(|at| at <= self.now) {
            self.initiator.handle_timeout(&mut self.client.host, self.now);
        }
        self.settle();
        true
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.settle();
        let limit = self.now + Duration::from_millis(ms);
        while self.step(limit) {}
    }

    /// Submits under a token, in namespace 1.
    pub(crate) fn submit(&mut self, token: u64, request: Request, pages: usize) {
        let buffer = (pages > 0).then(|| abi::aligned::AlignedBuf::new(pages));
        let (host, now) = (&mut self.client.host, self.now);
        self.initiator.submit(host, now, (token, 1), request, buffer).unwrap();
    }

    /// The end of the only request that has one.
    pub(crate) fn only_done(&mut self) -> Done {
        assert_eq!(self.done.len(), 1, "{:?}", self.done);
        self.done.remove(0)
    }

    /// Submits and waits.
    pub(crate) fn ask(&mut self, request: Request, pages: usize) -> Done {
        self.submit(0, request, pages);
        self.settle();
        self.only_done()
    }

    /// As [`Self::ask`], whatever ended before.
    pub(crate) fn ask_again(&mut self) -> Done {
        self.done.clear();
        self.ask(Request::Flush, 0)
    }

    /// Counters of the initiator that are not zero, by their names without the prefix.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut out = Vec::new();
        self.initiator.counters().visit(&mut |name, value| {
            if value > 0 {
                out.push((name.strip_prefix("nvmei_").unwrap(), value));
            }
        });
        out
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters().iter().find(|counter| counter.0 == name).map_or(0, |counter| counter.1)
    }
}

impl Net {
    /// As [`Self::settle`], for a discovery in place of the initiator.
    pub(crate) fn settle_with(&mut self, discovery: &mut apps::nvme::initiator::Discovery) {
        loop {
            let mut moved = false;
            for frame in self.client.run(self.now) {
                self.server.receive(self.now, &frame);
                moved = true;
            }
            for frame in self.server.run(self.now) {
                self.client.receive(self.now, &frame);
                moved = true;
            }
            while let Some(notice) = self.client.host.poll_notice() {
                discovery.handle_notice(&mut self.client.host, self.now, &notice);
                moved = true;
            }
            while let Some(notice) = self.server.host.poll_notice() {
                self.target.handle_notice(&mut self.server.host, self.now, &notice);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }
}
