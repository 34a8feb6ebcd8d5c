//! Two machines with a host and the real device each, and a wire that does with every frame what a
//! test says. What runs above the hosts is the test's.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use abi::Checksum;
use base::{Duration, Instant, Prng};
use crypto::Provider;
use host::{Application, Cidr, Config};
use nic::{DeviceConfig, L5oConfig};
use testkit::{Frame, PLAIN_LINK};

use crate::disk::Disk;

/// One way over the wire, where a test says nothing else.
pub(crate) const WAY: Duration = Duration::from_micros(500);

/// A machine of this test.
pub(crate) type Machine = testkit::Machine<Disk>;

/// What a test changes of a machine's configuration.
type Change<'a> = &'a dyn Fn(u8, &mut Config, &mut DeviceConfig);

fn machine(last: u8, seed: u64, disk: Disk, change: Change<'_>) -> Machine {
    let mut config = Config {
        addrs: vec![Cidr { addr: core::net::IpAddr::from([10, 77, 0, last]), prefix_len: 24 }],
        ..Config::default()
    };
    let mut device = DeviceConfig {
        l5o: Some(L5oConfig::new(Arc::new(Provider))),
        ..DeviceConfig::new([2, 0, 0, 0, 0, last])
    };
    change(last, &mut config, &mut device);
    Machine::new(config, device, PLAIN_LINK, seed, disk)
}

/// What a wire does to frames, each way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
}

/// Both machines, and the wire between them.
pub(crate) struct Lab {
    pub(crate) now: Instant,
    pub(crate) machines: [Machine; 2],
    pub(crate) faults: Faults,
    pub(crate) dropped: u64,
    rng: Prng,
    /// Frames on their way, in the order of their arrival: to whom.
    flying: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    frames: u64,
    /// Over all frames that were sent, and when.
    hash: DefaultHasher,
    lives: u64,
}

impl Lab {
    /// Machines 0 and 1 have the addresses 10.77.0.1 and .2.
    pub(crate) fn new(seed: u64, change: Change<'_>) -> Self {
        let machine = |last: u8| machine(last, last.into(), Disk::new(seed), change);
        Self {
            now: Instant::from_millis(1_000),
            machines: [machine(1), machine(2)],
            faults: Faults::default(),
            dropped: 0,
            rng: Prng::new(seed),
            flying: BTreeMap::new(),
            frames: 0,
            hash: DefaultHasher::new(),
            lives: 2,
        }
    }

    /// What all frames come to.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// A machine stops and starts again, with nothing but its disk; with `power`, that loses what
    /// it may. What is on the wire is lost, so that no answer comes after what it was about.
    pub(crate) fn restart(&mut self, index: usize, power: bool, change: Change<'_>) {
        self.flying.clear();
        self.lives += 1;
        let mut disk = core::mem::replace(&mut self.machines[index].disk, Disk::new(0));
        disk.stop(power);
        let last = u8::try_from(index + 1).unwrap();
        self.machines[index] = machine(last, self.lives, disk, change);
    }

    fn send(&mut self, to: usize, frame: Vec<u8>) {
        (self.now.as_nanos(), to, &frame).hash(&mut self.hash);
        let Faults { loss, reorder, duplicate } = self.faults;
        if self.rng.chance(loss) {
            self.dropped += 1;
            return;
        }
        if self.rng.chance(duplicate) {
            self.fly(to, WAY, frame.clone());
        }
        let late = if self.rng.chance(reorder) { WAY } else { Duration::ZERO };
        self.fly(to, WAY + late, frame);
    }

    fn fly(&mut self, to: usize, after: Duration, frame: Vec<u8>) {
        self.frames += 1;
        self.flying.insert((self.now + after, self.frames), (to, frame));
    }

    /// The frames with payload on their way to a machine, in the order of their arrival.
    pub(crate) fn flying_to(&mut self, to: usize) -> Vec<&mut Vec<u8>> {
        // Ethernet, IPv4, and TCP with timestamps.
        let bare = 14 + 20 + 32;
        let there = self
            .flying
            .values_mut()
            .filter(|(whom, frame)| (*whom, frame.len() > bare) == (to, true));
        there.map(|flying| &mut flying.1).collect()
    }

    /// Runs until `done` says so, or for that much virtual time; says whether it did.
    pub(crate) fn run<A: Application, B: Application>(
        &mut self,
        (a, b): (&mut A, &mut B),
        limit: Duration,
        mut done: impl FnMut(&mut Self, &mut A, &mut B) -> bool,
    ) -> bool {
        let end = self.now + limit;
        loop {
            while self.turn(a, b) {}
            if done(self, a, b) {
                return true;
            }
            while self.turn(a, b) {}
            let [first, second] = &self.machines;
            let due = [first.poll_timeout(self.now, a), second.poll_timeout(self.now, b)];
            let due = due.into_iter().flatten();
            let next = self.flying.keys().map(|(at, _)| *at).chain(due).min();
            let Some(next) = next.filter(|at| *at <= end) else { return false };
            self.now = self.now.max(next);
        }
    }

    /// Lets both machines do what they can at this time; says whether they did anything.
    fn turn<'a>(&mut self, a: &'a mut dyn Application, b: &'a mut dyn Application) -> bool {
        let mut worked = false;
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            let checksum = Checksum::Unchecked;
            self.machines[to].receive(Frame { bytes: frame, checksum, segment_size: 0 });
            worked = true;
        }
        for (index, app) in [a, b].into_iter().enumerate() {
            let (frames, did) = self.machines[index].turn(self.now, app);
            worked |= did || !frames.is_empty();
            for frame in frames {
                self.send(1 - index, frame.bytes);
            }
        }
        worked
    }

    /// The device of a machine forgets everything.
    pub(crate) fn reset_device(&mut self, machine: usize) {
        self.machines[machine].device().reset();
    }
}
