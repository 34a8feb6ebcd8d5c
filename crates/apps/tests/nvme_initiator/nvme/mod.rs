//! An initiator and a scripted controller: two hosts with their devices, and a link without delay.

mod target;

use base::{Duration, Instant};
use crypto::Provider;
use host::{Cidr, TlsClient, TlsServer};
use nic::{DeviceConfig, L5oConfig};
use outboard_apps::nvme::initiator::{
    Discovery, Initiator, InitiatorConfig, InitiatorEvent, InitiatorState, NvmeRequest,
    NvmeRequestDone,
};
use std::sync::Arc;
use testkit::{LinkFrame, PLAIN_LINK, TestMachine};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

pub(crate) use self::target::{ScriptAnswer, ScriptedController};

pub(crate) const PORT: u16 = 4420;
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.example:disks";

/// Creates a machine; with `offload`, its device has the layer-5 engine.
fn machine(number: u8, offload: bool) -> TestMachine {
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    device.l5o = offload.then(|| L5oConfig::new(Arc::new(Provider)));
    let config = host::HostConfig {
        addrs: vec![Cidr { addr: [10, 77, 0, number].into(), prefix_len: 24 }],
        ..host::HostConfig::default()
    };
    TestMachine::new(config, device, PLAIN_LINK, number.into(), ())
}

/// Initiator and target with their machines.
pub(crate) struct InitiatorRig {
    pub(crate) now: Instant,
    pub(crate) client: TestMachine,
    pub(crate) server: TestMachine,
    pub(crate) initiator: Initiator,
    pub(crate) target: ScriptedController,
    pub(crate) done: Vec<NvmeRequestDone>,
    pub(crate) events: Vec<InitiatorEvent>,
    /// All frames are dropped.
    pub(crate) cut: bool,
    /// Frames of the initiator from this port are dropped.
    pub(crate) lost_port: Option<u16>,
}

pub(crate) fn config() -> InitiatorConfig {
    let host = Nqn::new("nqn.2026-11.example:host").unwrap();
    let mut config =
        InitiatorConfig::new(host, [7; 16], Nqn::new(SUBSYSTEM).unwrap(), Arc::new(Provider));
    config.queues = 2;
    config.queue_entries = 32;
    config
}

pub(crate) fn remote() -> Endpoint {
    Endpoint { addr: [10, 77, 0, 2].into(), port: PORT }
}

impl InitiatorRig {
    pub(crate) fn new(config: InitiatorConfig) -> Self {
        Self::with(config, false, false)
    }

    /// Creates a pair, optionally with devices that offload, and with TLS.
    pub(crate) fn with(mut config: InitiatorConfig, offload: bool, tls: bool) -> Self {
        let (client, mut server) = (machine(1, offload), machine(2, offload));
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
        let target = ScriptedController::new(server.host(), ends);
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

    /// Creates a pair and connects it.
    pub(crate) fn live(change: impl FnOnce(&mut InitiatorConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        Self::new(config).connected()
    }

    pub(crate) fn connected(self) -> Self {
        let mut net = self;
        net.initiator.connect(net.now, net.client.host());
        net.settle();
        assert_eq!(net.events, [InitiatorEvent::Connected], "{:?}", net.initiator.state());
        assert_eq!(net.initiator.state(), InitiatorState::Live);
        net.events.clear();
        net
    }

    /// Runs everything that needs no time to pass.
    pub(crate) fn settle(&mut self) {
        loop {
            let moved = turn(self, |net, now| net.client.turn(now, &mut net.initiator));
            self.done.extend(core::iter::from_fn(|| self.initiator.poll_done()));
            self.events.extend(core::iter::from_fn(|| self.initiator.poll_event()));
            if !moved {
                return;
            }
        }
    }

    /// As [`Self::settle`], with a discovery instead of the initiator.
    pub(crate) fn settle_with(&mut self, discovery: &mut Discovery) {
        while turn(self, |net, now| net.client.turn(now, discovery)) {}
    }

    /// Advances the time to the next timeout, at most to `limit`. Returns false if there is none.
    pub(crate) fn step(&mut self, limit: Instant) -> bool {
        let due = Instant::earliest([
            self.client.poll_timeout(self.now, &self.initiator),
            self.server.poll_timeout(self.now, &self.target),
        ]);
        let Some(next) = due.filter(|&at| at <= limit) else {
            self.now = limit;
            return false;
        };
        self.now = self.now.max(next);
        self.settle();
        true
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.settle();
        let limit = self.now + Duration::from_millis(ms);
        while self.step(limit) {}
    }

    /// Submits a request for namespace 1 with a buffer of `pages` pages.
    pub(crate) fn submit(&mut self, token: u64, request: NvmeRequest, pages: usize) {
        let buffer = (pages > 0).then(|| abi::aligned::AlignedBuf::new(pages));
        let (now, host) = (self.now, self.client.host());
        self.initiator.submit(now, host, (token, 1), request, buffer).unwrap();
    }

    /// Removes and returns the only completed request.
    pub(crate) fn only_done(&mut self) -> NvmeRequestDone {
        assert_eq!(self.done.len(), 1, "{:?}", self.done);
        self.done.remove(0)
    }

    /// Submits a request and returns its completion.
    pub(crate) fn ask(&mut self, request: NvmeRequest, pages: usize) -> NvmeRequestDone {
        self.submit(0, request, pages);
        self.settle();
        self.only_done()
    }

    /// Submits a flush and returns its completion, ignoring earlier ones.
    pub(crate) fn ask_again(&mut self) -> NvmeRequestDone {
        self.done.clear();
        self.ask(NvmeRequest::Flush, 0)
    }

    /// Returns the initiator's non-zero counters, without their prefix.
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

/// Runs both ends once and delivers their frames. Returns whether anything happened.
fn turn(
    net: &mut InitiatorRig,
    client: impl FnOnce(&mut InitiatorRig, Instant) -> (Vec<LinkFrame>, bool),
) -> bool {
    let (up, by_client) = client(net, net.now);
    for frame in up {
        // The source port follows the Ethernet and IPv4 headers.
        let port = frame.bytes.get(34..36).map(|port| u16::from_be_bytes([port[0], port[1]]));
        if !net.cut && (net.lost_port.is_none() || port != net.lost_port) {
            net.server.receive(frame);
        }
    }
    let (down, by_server) = net.server.turn(net.now, &mut net.target);
    if !net.cut {
        down.into_iter().for_each(|frame| net.client.receive(frame));
    }
    by_client || by_server
}
