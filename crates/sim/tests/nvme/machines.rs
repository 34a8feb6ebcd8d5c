//! Two machines, each with a host and the real device, connected by a link whose faults follow from
//! a seed. The applications above the hosts belong to the tests.

use core::cell::RefCell;
use core::ops::{Deref, DerefMut};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use base::{Duration, Instant, Prng};
use crypto::Provider;
use host::{Cidr, HostConfig};
use nic::{DeviceConfig, L5oConfig};
use testkit::{LinkDestination, LinkRule, PLAIN_LINK, TwoMachineNetwork};

use crate::disk::FaultyDisk;

/// Virtual time at which tests begin.
pub(crate) const START: Instant = Instant::from_millis(1_000);
/// One-way delay of the link. A reordered frame takes twice as long.
const DELAY: Duration = Duration::from_micros(500);

/// A machine of these tests.
pub(crate) type FaultyDiskMachine = testkit::TestMachine<FaultyDisk>;

/// A test's changes to the configuration of a machine.
pub(crate) type MachineConfigChange<'a> = &'a dyn Fn(&mut HostConfig, &mut DeviceConfig);

fn machine(
    last: u8,
    seed: u64,
    disk: FaultyDisk,
    change: MachineConfigChange<'_>,
) -> FaultyDiskMachine {
    let mut config = HostConfig {
        addrs: vec![Cidr { addr: core::net::IpAddr::from([10, 77, 0, last]), prefix_len: 24 }],
        ..HostConfig::default()
    };
    let mut device = DeviceConfig {
        l5o: Some(L5oConfig::new(Arc::new(Provider))),
        ..DeviceConfig::new([2, 0, 0, 0, 0, last])
    };
    change(&mut config, &mut device);
    FaultyDiskMachine::new(config, device, PLAIN_LINK, seed, disk)
}

/// Returns a client and a server with the addresses 10.77.0.1 and .2.
pub(crate) fn machines(
    seed: u64,
    change: MachineConfigChange<'_>,
) -> (FaultyDiskMachine, FaultyDiskMachine) {
    let machine = |last: u8| machine(last, last.into(), FaultyDisk::new(seed), change);
    (machine(1), machine(2))
}

/// Probabilities of the link's faults, for both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkFaultRates {
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
}

/// State of the link that the test can see and set.
#[derive(Default)]
struct FaultyLinkState {
    faults: LinkFaultRates,
    dropped: u64,
    /// Hash over all sent frames and the times of sending.
    hash: DefaultHasher,
}

/// Returns the rule of a link with the faults in `link`.
fn rule(seed: u64, link: Rc<RefCell<FaultyLinkState>>) -> LinkRule {
    let mut prng = Prng::new(seed);
    Box::new(move |now, towards, frame| {
        let mut link = link.borrow_mut();
        (now.as_nanos(), towards == LinkDestination::Server, &frame.bytes).hash(&mut link.hash);
        let LinkFaultRates { loss, reorder, duplicate } = link.faults;
        if prng.chance(loss) {
            link.dropped += 1;
            return vec![];
        }
        let copy = prng.chance(duplicate).then(|| (DELAY, frame.clone()));
        let late = if prng.chance(reorder) { DELAY } else { Duration::ZERO };
        copy.into_iter().chain([(DELAY + late, frame)]).collect()
    })
}

/// Both machines, their applications, and the link between them.
pub(crate) struct FaultyLinkPair<A, B> {
    network: TwoMachineNetwork<A, B, FaultyDisk>,
    link: Rc<RefCell<FaultyLinkState>>,
    /// Number of machines so far, restarted ones counted again.
    lives: u64,
}

impl<A: host::Application, B: host::Application> FaultyLinkPair<A, B> {
    pub(crate) fn new(
        seed: u64,
        client: (FaultyDiskMachine, A),
        server: (FaultyDiskMachine, B),
    ) -> Self {
        let link = Rc::<RefCell<FaultyLinkState>>::default();
        let mut network = TwoMachineNetwork::new(START, client, server);
        network.link = rule(seed, Rc::clone(&link));
        Self { network, link, lives: 2 }
    }

    /// Runs until `done` returns true or `limit` of virtual time has passed; returns whether it was
    /// done. `done` is evaluated only when nothing is left to do at the present time, so that a
    /// device that a test resets next has delivered all its events.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut TwoMachineNetwork<A, B, FaultyDisk>) -> bool,
    ) -> bool {
        let end = self.now + limit;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if !self.advance(end) {
                return false;
            }
        }
    }
}

impl<A, B> FaultyLinkPair<A, B> {
    pub(crate) fn set_faults(&mut self, faults: LinkFaultRates) {
        self.link.borrow_mut().faults = faults;
    }

    /// Returns the number of frames that the link has lost.
    pub(crate) fn dropped(&self) -> u64 {
        self.link.borrow().dropped
    }

    /// Returns the hash over all sent frames and the times of sending.
    pub(crate) fn hash(&self) -> u64 {
        self.link.borrow().hash.finish()
    }

    /// Returns both machines, the client's first.
    pub(crate) const fn both(&self) -> [&FaultyDiskMachine; 2] {
        [&self.network.client.machine, &self.network.server.machine]
    }

    pub(crate) const fn machine(&mut self, which: LinkDestination) -> &mut FaultyDiskMachine {
        match which {
            LinkDestination::Client => &mut self.network.client.machine,
            LinkDestination::Server => &mut self.network.server.machine,
        }
    }

    /// Stops a machine and starts it again; only its disk is kept. With `power`, the disk loses
    /// writes that were not flushed. Frames on the link are lost, so that no answer to the old
    /// machine reaches the new one.
    pub(crate) fn restart(
        &mut self,
        which: LinkDestination,
        power: bool,
        change: MachineConfigChange<'_>,
    ) {
        self.network.drop_frames();
        self.lives += 1;
        let (lives, stopped) = (self.lives, self.machine(which));
        let mut disk = core::mem::replace(&mut stopped.disk, FaultyDisk::new(0));
        disk.stop(power);
        let last = if which == LinkDestination::Client { 1 } else { 2 };
        *stopped = machine(last, lives, disk, change);
    }

    /// Replaces the application of the client; also returns the old one.
    pub(crate) fn with_client<C>(self, app: C) -> (FaultyLinkPair<C, B>, A) {
        let Self { network, link, lives } = self;
        let (network, before) = network.with_client(app);
        (FaultyLinkPair { network, link, lives }, before)
    }
}

impl<A, B> Deref for FaultyLinkPair<A, B> {
    type Target = TwoMachineNetwork<A, B, FaultyDisk>;

    fn deref(&self) -> &Self::Target {
        &self.network
    }
}

impl<A, B> DerefMut for FaultyLinkPair<A, B> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.network
    }
}
