//! Two machines, each with a host and the real device, connected by a link whose faults follow from
//! a seed. The applications above the hosts belong to the tests.

use core::cell::RefCell;
use core::ops::{Deref, DerefMut};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use base::{Duration, Instant, Prng};
use crypto::Provider;
use host::{Cidr, Config};
use nic::{DeviceConfig, L5oConfig};
use testkit::{LinkRule, Network, PLAIN_LINK, Towards};

use crate::disk::Disk;

/// Virtual time at which tests begin.
pub(crate) const START: Instant = Instant::from_millis(1_000);
/// One-way delay of the link. A reordered frame takes twice as long.
const DELAY: Duration = Duration::from_micros(500);

/// A machine of these tests.
pub(crate) type Machine = testkit::Machine<Disk>;

/// A test's changes to the configuration of a machine.
pub(crate) type Change<'a> = &'a dyn Fn(&mut Config, &mut DeviceConfig);

fn machine(last: u8, seed: u64, disk: Disk, change: Change<'_>) -> Machine {
    let mut config = Config {
        addrs: vec![Cidr { addr: core::net::IpAddr::from([10, 77, 0, last]), prefix_len: 24 }],
        ..Config::default()
    };
    let mut device = DeviceConfig {
        l5o: Some(L5oConfig::new(Arc::new(Provider))),
        ..DeviceConfig::new([2, 0, 0, 0, 0, last])
    };
    change(&mut config, &mut device);
    Machine::new(config, device, PLAIN_LINK, seed, disk)
}

/// Returns a client and a server with the addresses 10.77.0.1 and .2.
pub(crate) fn machines(seed: u64, change: Change<'_>) -> (Machine, Machine) {
    let machine = |last: u8| machine(last, last.into(), Disk::new(seed), change);
    (machine(1), machine(2))
}

/// Probabilities of the link's faults, for both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
}

/// State of the link that the test can see and set.
#[derive(Default)]
struct Link {
    faults: Faults,
    dropped: u64,
    /// Hash over all sent frames and the times of sending.
    hash: DefaultHasher,
}

/// Returns the rule of a link with the faults in `link`.
fn rule(seed: u64, link: Rc<RefCell<Link>>) -> LinkRule {
    let mut prng = Prng::new(seed);
    Box::new(move |now, towards, frame| {
        let mut link = link.borrow_mut();
        (now.as_nanos(), towards == Towards::Server, &frame.bytes).hash(&mut link.hash);
        let Faults { loss, reorder, duplicate } = link.faults;
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
pub(crate) struct Machines<A, B> {
    network: Network<A, B, Disk>,
    link: Rc<RefCell<Link>>,
    /// Number of machines so far, restarted ones counted again.
    lives: u64,
}

impl<A: host::Application, B: host::Application> Machines<A, B> {
    pub(crate) fn new(seed: u64, client: (Machine, A), server: (Machine, B)) -> Self {
        let link = Rc::<RefCell<Link>>::default();
        let mut network = Network::new(START, client, server);
        network.link = rule(seed, Rc::clone(&link));
        Self { network, link, lives: 2 }
    }

    /// Runs until `done` returns true or `limit` of virtual time has passed; returns whether it was
    /// done. `done` is evaluated only when nothing is left to do at the present time, so that a
    /// device that a test resets next has delivered all its events.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Network<A, B, Disk>) -> bool,
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

impl<A, B> Machines<A, B> {
    pub(crate) fn set_faults(&mut self, faults: Faults) {
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
    pub(crate) const fn both(&self) -> [&Machine; 2] {
        [&self.network.client.machine, &self.network.server.machine]
    }

    pub(crate) const fn machine(&mut self, which: Towards) -> &mut Machine {
        match which {
            Towards::Client => &mut self.network.client.machine,
            Towards::Server => &mut self.network.server.machine,
        }
    }

    /// Stops a machine and starts it again; only its disk is kept. With `power`, the disk loses
    /// writes that were not flushed. Frames on the link are lost, so that no answer to the old
    /// machine reaches the new one.
    pub(crate) fn restart(&mut self, which: Towards, power: bool, change: Change<'_>) {
        self.network.lose_frames();
        self.lives += 1;
        let (lives, stopped) = (self.lives, self.machine(which));
        let mut disk = core::mem::replace(&mut stopped.disk, Disk::new(0));
        disk.stop(power);
        let last = if which == Towards::Client { 1 } else { 2 };
        *stopped = machine(last, lives, disk, change);
    }

    /// Replaces the application of the client; also returns the old one.
    pub(crate) fn with_client<C>(self, app: C) -> (Machines<C, B>, A) {
        let Self { network, link, lives } = self;
        let (network, before) = network.with_client(app);
        (Machines { network, link, lives }, before)
    }
}

impl<A, B> Deref for Machines<A, B> {
    type Target = Network<A, B, Disk>;

    fn deref(&self) -> &Self::Target {
        &self.network
    }
}

impl<A, B> DerefMut for Machines<A, B> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.network
    }
}
