//! Two machines connected by a link with faults, on virtual time.
//!
//! Used by the tests of `apps`, `node`, `quic` and `sim` and by the fuzz targets, each with its own
//! applications and link rules. Nothing sleeps or reads a clock: time advances to the next event.

use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;

use base::{Duration, Instant};
use host::Application;

use crate::MemDisk;
use crate::machine::{LinkFrame, TestDisk, TestMachine, count};

/// The machine that a frame is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkDestination {
    /// [`TwoMachineNetwork::client`].
    Client,
    /// [`TwoMachineNetwork::server`].
    Server,
}

/// Decides the fate of a frame: returns the frames to deliver, each with its delay. An empty list
/// is loss, two entries are a duplicate, and changed bytes are corruption.
pub type LinkRule =
    Box<dyn FnMut(Instant, LinkDestination, LinkFrame) -> Vec<(Duration, LinkFrame)>>;

/// Returns the rule of a link that delivers every frame after `time`.
#[must_use]
pub fn fixed_delay_link(time: Duration) -> LinkRule {
    Box::new(move |_, _, frame| vec![(time, frame)])
}

/// A machine and the application above its host.
pub struct NetworkNode<A, D = MemDisk> {
    /// The machine.
    pub machine: TestMachine<D>,
    /// The application.
    pub app: A,
}

impl<A: Application, D: TestDisk> NetworkNode<A, D> {
    /// Returns the sum of the counters and gauges named `name` of host, device and application.
    ///
    /// # Panics
    /// If no counter has this name.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        count(name, |f| self.visit(f))
    }

    /// Calls `f` with the name and value of every counter and gauge of host, device and
    /// application.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.machine.visit(f);
        self.app.visit(f);
    }

    /// Returns the names and values of all counters and gauges that are not zero.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = base::counters::collect_counters(|f| self.visit(f));
        all.retain(|(_, value)| *value > 0);
        all
    }
}

impl<A, D> Deref for NetworkNode<A, D> {
    type Target = TestMachine<D>;

    fn deref(&self) -> &TestMachine<D> {
        &self.machine
    }
}

impl<A, D> DerefMut for NetworkNode<A, D> {
    fn deref_mut(&mut self) -> &mut TestMachine<D> {
        &mut self.machine
    }
}

/// Two machines, their applications and the link between them.
pub struct TwoMachineNetwork<A, B, D = MemDisk> {
    /// Virtual time.
    pub now: Instant,
    /// The machine that connects.
    pub client: NetworkNode<A, D>,
    /// The machine that accepts connections.
    pub server: NetworkNode<B, D>,
    /// The rule of the link, in both directions.
    pub link: LinkRule,
    /// Frames in flight by arrival time and serial number, with their destination.
    on_link: BTreeMap<(Instant, u64), (LinkDestination, LinkFrame)>,
    frames: u64,
}

impl<A, B, D> TwoMachineNetwork<A, B, D> {
    /// Replaces the client's application. Returns the network and the previous application.
    #[must_use]
    pub fn with_client<C>(self, app: C) -> (TwoMachineNetwork<C, B, D>, A) {
        let Self {
            now,
            client: NetworkNode { machine, app: before },
            server,
            link,
            on_link,
            frames,
        } = self;
        let client = NetworkNode { machine, app };
        (TwoMachineNetwork { now, client, server, link, on_link, frames }, before)
    }

    /// Returns the frames in flight to a machine, in order of arrival.
    pub fn frames_to(&mut self, towards: LinkDestination) -> impl Iterator<Item = &mut LinkFrame> {
        let on_link = self.on_link.values_mut().filter(move |(to, _)| *to == towards);
        on_link.map(|(_, frame)| frame)
    }

    /// Drops all frames in flight.
    pub fn drop_frames(&mut self) {
        self.on_link.clear();
    }
}

impl<A: Application, B: Application, D: TestDisk> TwoMachineNetwork<A, B, D> {
    /// Connects two machines by a link without delay.
    #[must_use]
    pub fn new(now: Instant, client: (TestMachine<D>, A), server: (TestMachine<D>, B)) -> Self {
        let client = NetworkNode { machine: client.0, app: client.1 };
        let server = NetworkNode { machine: server.0, app: server.1 };
        let link = fixed_delay_link(Duration::ZERO);
        let on_link = BTreeMap::new();
        Self { now, client, server, link, on_link, frames: 0 }
    }

    /// Puts a frame on the link; it arrives `after` from now.
    pub fn inject(&mut self, towards: LinkDestination, after: Duration, frame: LinkFrame) {
        self.frames += 1;
        self.on_link.insert((self.now + after, self.frames), (towards, frame));
    }

    /// Returns the number of frames put on the link so far.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Delivers the frames that are due and runs each machine once. Returns whether anything
    /// happened.
    pub fn turn(&mut self) -> bool {
        let mut worked = false;
        while let Some(first) = self.on_link.first_entry().filter(|e| e.key().0 <= self.now) {
            let (towards, frame) = first.remove();
            match towards {
                LinkDestination::Client => self.client.receive(frame),
                LinkDestination::Server => self.server.receive(frame),
            }
            worked = true;
        }
        let (up, by_client) = self.client.machine.turn(self.now, &mut self.client.app);
        let (down, by_server) = self.server.machine.turn(self.now, &mut self.server.app);
        for (towards, frames) in [(LinkDestination::Server, up), (LinkDestination::Client, down)] {
            for frame in frames {
                for (after, frame) in (self.link)(self.now, towards, frame) {
                    self.inject(towards, after, frame);
                }
            }
        }
        worked || by_client || by_server
    }

    /// Runs turns until no work is left at this time.
    pub fn settle(&mut self) {
        while self.turn() {}
    }

    /// Returns the time at which a machine has work to do or a frame arrives next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([
            self.client.poll_timeout(self.now, &self.client.app),
            self.server.poll_timeout(self.now, &self.server.app),
            self.on_link.keys().next().map(|(at, _)| *at),
        ])
    }

    /// Settles, then advances time to the next event. If there is none until `end`, sets time to
    /// `end` and returns false.
    pub fn advance(&mut self, end: Instant) -> bool {
        self.settle();
        let Some(next) = self.poll_timeout().filter(|&at| at <= end) else {
            self.now = end;
            return false;
        };
        // An event that is due but made no progress is retried a little later.
        self.now = if next > self.now { next } else { self.now + Duration::from_micros(10) };
        true
    }

    /// Runs until `done` returns true, for at most `limit` of virtual time. Returns whether it did.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.turn() && !self.advance(end) {
                return done(self);
            }
        }
    }
}
