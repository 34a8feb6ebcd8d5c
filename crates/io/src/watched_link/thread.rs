//! The thread that watches an interface, and opens its link again.

use std::fmt::Write as _;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use base::{Duration, Instant};
use wire::LinkAddress;

use super::tracker::{InterfaceChange, InterfaceTracker};
use super::{ChangeableLink, LinkState, LinkWatchCounters, SharedState, SharedWatch, WatchConfig};
use crate::clock::MonotonicClock;
use crate::interface::{index_of, receive_queues};
use crate::link::Link;
use crate::link_events::LinkEventSocket;
use crate::notify::{Notifier, Poller};
use crate::open_error::OpenLinkError;
use crate::queue_events::QueueEventSocket;

/// Time until the first try to open a removed link again, and the longest between two. Each doubles
/// the last. A report that the interface exists causes a try at once.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The thread of a link's queues. It ends when this is dropped.
pub(super) struct WatchThread {
    stop: Notifier,
    thread: Option<JoinHandle<()>>,
}

impl WatchThread {
    /// Starts the thread for a link with `queues` queues that was opened with an MTU, and can use
    /// one up to `mtu_max`.
    pub(super) fn start<L: ChangeableLink + 'static>(
        config: WatchConfig<L>,
        queues: usize,
        (mtu, mtu_max): (u16, u16),
    ) -> io::Result<(Arc<SharedWatch<L>>, Arc<Self>)> {
        let mut opened = Vec::new();
        opened.resize_with(queues, || None);
        let counters = LinkWatchCounters::default();
        let shared = Arc::new(SharedWatch {
            changes: AtomicU32::new(0),
            state: Mutex::new(SharedState {
                state: LinkState::Up,
                mtu,
                receive_queues: None,
                device_changes: 0,
                opened,
                counters,
            }),
            bells: (0..queues).map(|_| Notifier::new()).collect::<io::Result<_>>()?,
        });
        let stop = Notifier::new()?;
        // The index is read after the socket is open, so that no removal is missed. Zero is the
        // index of no interface: it was removed meanwhile.
        let socket = LinkEventSocket::open()?;
        let index = index_of(&config.interface).unwrap_or(0);
        let tracker = InterfaceTracker::new(index, &config.needs, mtu);
        // Without reports about queues, their number is read at each report about the interface.
        let queue_events =
            config.follows_queues.then(QueueEventSocket::open).transpose().unwrap_or(None);
        let mut watcher = Watcher {
            config,
            socket,
            queue_events,
            receive_queues: None,
            mtu_max,
            tracker,
            shared: Arc::clone(&shared),
            clock: MonotonicClock::new(),
            down_since: Instant::ZERO,
            retry: Retry::default(),
        };
        watcher.query();
        watcher.check_queues();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || watcher.run(&stopped))?;
        Ok((shared, Arc::new(Self { stop, thread: Some(thread) })))
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        self.stop.notify();
        // The panic of a thread was printed already.
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Tries to open a removed link again.
#[derive(Default)]
struct Retry {
    /// Time of the next try; `None` unless the interface was removed.
    due: Option<Instant>,
    wait: Duration,
    /// Reason why the last try failed.
    failure: String,
}

struct Watcher<L> {
    config: WatchConfig<L>,
    socket: LinkEventSocket,
    /// Reports about numbers of queues, if the link depends on them.
    queue_events: Option<QueueEventSocket>,
    /// Last known number of receive queues, if the link depends on it.
    receive_queues: Option<u32>,
    /// Largest MTU that the link can use.
    mtu_max: u16,
    tracker: InterfaceTracker,
    shared: Arc<SharedWatch<L>>,
    clock: MonotonicClock,
    down_since: Instant,
    retry: Retry,
}

impl<L: ChangeableLink> Watcher<L> {
    fn run(mut self, stop: &Notifier) {
        let mut poller = Poller::new();
        let stopped = poller.add(stop.as_raw_fd());
        poller.add(self.socket.fd());
        self.queue_events.as_ref().map(|events| poller.add(events.fd()));
        while !poller.is_ready(stopped) {
            let now = self.clock.now();
            self.handle_reports(now);
            self.queue_events.iter_mut().for_each(QueueEventSocket::drain);
            self.check_queues();
            if self.retry.due.is_some_and(|due| due <= now) {
                self.try_to_reopen(now);
            }
            let timeout = self.retry.due.map(|due| due.since(now));
            // An error means that the kernel is out of memory: the loop continues.
            let _ = poller.wait(timeout);
        }
    }

    /// Asks for the state of the interface.
    fn query(&mut self) {
        if let Some(index) = self.tracker.index() {
            // If the kernel has no memory for the question, the next report has the state.
            let _ = self.socket.query(index);
        }
    }

    /// Reports another number of receive queues, if the link depends on it.
    fn check_queues(&mut self) {
        if !self.config.follows_queues || self.tracker.index().is_none() {
            return;
        }
        let name = &self.config.interface;
        // An interface that has just been removed has no queues, which the next report tells.
        let Some(count) = receive_queues(name) else { return };
        let Some(before) = self.receive_queues.replace(count).filter(|&before| before != count)
        else {
            return;
        };
        self.shared.change(|shared| {
            shared.receive_queues = Some(count);
            shared.counters.link_queues_changed += 1;
        });
        self.report(&format!("interface {name} has {count} receive queues now, had {before}"));
    }

    fn handle_reports(&mut self, now: Instant) {
        let mut changes = Vec::new();
        let Self { socket, tracker, .. } = self;
        let complete = socket.read(|event| tracker.handle(&event, |change| changes.push(change)));
        if !complete {
            self.query();
            // An interface may have appeared in a report that was lost.
            self.retry.due = self.retry.due.map(|_| now);
        }
        for change in changes {
            self.handle_change(now, change);
        }
    }

    fn handle_change(&mut self, now: Instant, change: InterfaceChange) {
        let name = self.config.interface.clone();
        match change {
            InterfaceChange::Down { is_enabled, at_start } => {
                self.down_since = now;
                self.shared.change(|shared| {
                    shared.state = LinkState::Down;
                    shared.counters.link_down += u64::from(!at_start);
                });
                let why = if is_enabled { "has no carrier" } else { "is down" };
                self.report(&format!("interface {name} {why}; frames are dropped until it is up"));
            }
            InterfaceChange::Up => {
                self.shared.change(|shared| {
                    shared.state = LinkState::Up;
                    shared.device_changes = shared.device_changes.wrapping_add(1);
                    shared.counters.link_up += 1;
                });
                let ms = now.since(self.down_since).as_nanos() / 1_000_000;
                self.report(&format!("interface {name} is up after {ms} ms"));
            }
            InterfaceChange::Mtu { from, to } => {
                self.shared.change(|shared| {
                    shared.mtu = to;
                    shared.device_changes = shared.device_changes.wrapping_add(1);
                    shared.counters.link_mtu_changed += 1;
                });
                let mut line = format!("MTU of interface {name} is now {to}, was {from}");
                if to > self.mtu_max {
                    let max = self.mtu_max;
                    let _ = write!(line, "; the link uses up to {max} until it is opened again");
                }
                self.report(&line);
            }
            InterfaceChange::Address(address) => self.report_address(address),
            InterfaceChange::Removed => self.handle_removal(now),
            InterfaceChange::Appeared => self.retry.due = Some(now),
        }
    }

    fn report_address(&self, address: [u8; 6]) {
        self.shared.change(|shared| {
            // The other end of a TAP has another address.
            shared.device_changes = shared.device_changes.wrapping_add(1);
            shared.counters.link_address_changed += 1;
        });
        let name = &self.config.interface;
        let mut line = format!("link address of interface {name} is now {}", LinkAddress(address));
        if let Some(ours) = self.config.mac.filter(|&ours| ours != address) {
            let ours = LinkAddress(ours);
            let _ = write!(
                line,
                "; frames to {ours} are lost: run `ip link set {name} address {ours}`"
            );
        }
        self.report(&line);
    }

    fn handle_removal(&mut self, now: Instant) {
        self.down_since = now;
        self.retry = Retry { due: Some(now), wait: RETRY_MIN, failure: String::new() };
        self.shared.change(|shared| {
            shared.counters.link_down += u64::from(shared.state == LinkState::Up);
            shared.state = LinkState::Removed;
            shared.opened.iter_mut().for_each(|opened| *opened = None);
        });
        let WatchConfig { interface, needs, .. } = &self.config;
        self.report(&format!(
            "interface {interface} was removed; frames are dropped until {needs} can be opened \
             again"
        ));
    }

    fn try_to_reopen(&mut self, now: Instant) {
        match (self.config.open)() {
            Ok(links) => {
                self.retry.due = None;
                // Removed again if it has no index: the query's answer reports that.
                self.tracker.reopen(index_of(&self.config.interface).unwrap_or(0));
                self.receive_queues = None;
                let address = links.first().and_then(Link::link_address);
                self.mtu_max = links.first().map_or(u16::MAX, L::mtu_max);
                self.shared.change(|shared| {
                    shared.state = LinkState::Down;
                    shared.receive_queues = None;
                    shared.opened = links.into_iter().map(Some).collect();
                    shared.counters.link_reopened += 1;
                });
                self.report(&format!("interface {} was opened again", self.config.interface));
                if let Some(other) = address.filter(|_| address != self.config.mac) {
                    self.report_address(other);
                }
                self.query();
            }
            Err(error) => {
                self.retry.due = Some(now + self.retry.wait);
                self.retry.wait = (self.retry.wait * 2).min(RETRY_MAX);
                let failure = error.to_string();
                let expected = matches!(error, OpenLinkError::NoInterface { .. });
                if !expected && failure != self.retry.failure {
                    self.report(&failure);
                    self.retry.failure = failure;
                }
            }
        }
    }

    fn report(&self, line: &str) {
        (self.config.report)(line);
    }
}
