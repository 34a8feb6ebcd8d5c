//! Links to an interface that may go down, change or be removed while they are open.
//!
//! One thread reads the kernel's reports about the interface (`link_events`) and finds the
//! changes in them (`tracker`). It counts and reports each change, and opens the queues again when
//! an interface that was removed is back (`thread`). Each queue is a [`WatchedLink`], which takes
//! over the new state at its next receive:
//!
//! - While the interface is down or removed, frames to send are dropped and counted. The host
//!   retransmits.
//! - A removed interface leaves a descriptor in error, which would wake its poller without end.
//!   The descriptor therefore refers to the queue's bell until the queue is opened again.
//! - A new MTU is that of [`Link::capabilities`]; the offloads stay the same, because they depend
//!   on the kernel and the configuration only.
//! - A link that has a socket for each receive queue of the interface learns their number.
//!
//! The thread ends with the last queue. A queue in use reads one atomic per receive, and takes no
//! lock.

mod thread;
mod tracker;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::PacketPool;
use abi::link::{LinkCaps, LinkTxStatus, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use base::Instant;

use crate::link::Link;
use crate::notify::Notifier;
use crate::open_error::OpenLinkError;
use thread::WatchThread;

base::counters! {
    /// Changes of an interface.
    pub struct LinkWatchCounters {
        /// Times that the interface went down, lost its carrier or was removed.
        link_down: alarm,
        /// Times that it came up again.
        link_up,
        /// Times that the link was opened again after the interface was removed.
        link_reopened,
        /// Changes of the MTU.
        link_mtu_changed,
        /// Changes of the interface's link address.
        link_address_changed,
        /// Changes of the number of the interface's receive queues, for links that depend on it.
        link_queues_changed,
    }
}

/// One queue of a link whose interface may change while it is open.
pub trait ChangeableLink: Link {
    /// Sets whether the interface is down: frames to send are dropped then.
    fn set_down(&mut self, is_down: bool);

    /// Sets the MTU, which has changed.
    fn set_mtu(&mut self, mtu: u16);

    /// Returns the largest MTU that the link can use until it is opened again.
    fn mtu_max(&self) -> u16 {
        u16::MAX
    }

    /// Sets the number of the interface's receive queues. Only links that have a socket for each of
    /// them are interested.
    fn set_receive_queues(&mut self, _count: u32) {}

    /// Closes the queue, whose interface was removed. [`Link::pollable`] keeps its number, and
    /// polls readable with `bell` from now on.
    ///
    /// # Errors
    /// If no file descriptor is left; the queue stays open.
    fn close(&mut self, bell: &Notifier) -> io::Result<()>;

    /// Continues on a queue of the interface that was opened again with the same configuration, and
    /// so has the same offloads. [`Link::pollable`] keeps its number, the counters their values.
    ///
    /// # Errors
    /// If no file descriptor is left; the queue stays closed.
    fn reopen(&mut self, new: Self) -> io::Result<()>
    where
        Self: Sized;
}

/// Opens the queues of a link.
pub type OpenQueues<L> = Box<dyn Fn() -> Result<Vec<L>, OpenLinkError> + Send>;

/// A link to watch.
pub struct WatchConfig<L> {
    /// Name of the interface that carries the frames.
    pub interface: String,
    /// Name of the interface that must exist for the link to be opened again: that below a macvtap,
    /// else the same.
    pub needs: String,
    /// Link address that the interface itself must have, if frames are lost with another one. That
    /// of [`Link::link_address`] precedes.
    pub mac: Option<[u8; 6]>,
    /// True if the link has a socket for each receive queue of the interface.
    pub follows_queues: bool,
    /// Opens the queues, at first and again.
    pub open: OpenQueues<L>,
    /// Reports a change in one line.
    pub report: fn(&str),
}

/// State of the interface, for the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Up,
    Down,
    Removed,
}

/// State that the thread shares with the queues.
struct SharedState<L> {
    state: LinkState,
    mtu: u16,
    /// Receive queues of the interface; `None` if the link does not depend on their number.
    receive_queues: Option<u32>,
    /// Changes that concern the device, modulo 2^32: the interface is up again, or has another MTU
    /// or link address.
    device_changes: u32,
    /// Queues that were opened again, until each is taken.
    opened: Vec<Option<L>>,
    counters: LinkWatchCounters,
}

struct SharedWatch<L> {
    /// Number of changes of `state`, modulo 2^32.
    changes: AtomicU32,
    state: Mutex<SharedState<L>>,
    /// Signaled at each change, one for each queue.
    bells: Vec<Notifier>,
}

impl<L> SharedWatch<L> {
    fn lock(&self) -> MutexGuard<'_, SharedState<L>> {
        // Each change of the state is complete even if the thread has panicked after it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the queues. All under the lock, so that a queue that has seen
    /// the change clears its bell after it was signaled.
    fn change(&self, change: impl FnOnce(&mut SharedState<L>)) {
        let mut state = self.lock();
        change(&mut state);
        self.changes.fetch_add(1, Ordering::Release);
        self.bells.iter().for_each(Notifier::notify);
    }
}

/// One queue of a link whose interface is watched.
pub struct WatchedLink<L> {
    /// `None` if the kernel reports no changes. Dropped before `link`: the end of a link is no
    /// removal.
    watch: Option<(Arc<SharedWatch<L>>, Arc<WatchThread>)>,
    link: L,
    queue: usize,
    /// True after the interface was removed, until the queue is opened again.
    is_closed: bool,
    /// Number of changes that this queue has seen.
    seen: u32,
    /// Changes that concern the device.
    changes: u32,
}

/// Opens the queues of a link, and watches its interface. If the kernel refuses to report changes,
/// that is reported, and the link works without.
///
/// # Errors
/// Those of [`WatchConfig::open`].
pub fn open<L: ChangeableLink + 'static>(
    mut config: WatchConfig<L>,
) -> Result<Vec<WatchedLink<L>>, OpenLinkError> {
    let links = (config.open)()?;
    let mtu = links.first().map_or(0, |link| link.capabilities().mtu);
    let mtu_max = links.first().map_or(u16::MAX, L::mtu_max);
    config.mac = links.first().and_then(Link::link_address).or(config.mac);
    let (name, report) = (config.interface.clone(), config.report);
    let watch = WatchThread::start(config, links.len(), (mtu, mtu_max))
        .map_err(|e| report(&format!("cannot watch interface {name}: {e}")))
        .ok();
    let queue = |(queue, link)| {
        let watch = watch.clone();
        WatchedLink { watch, link, queue, is_closed: false, seen: 0, changes: 0 }
    };
    Ok(links.into_iter().enumerate().map(queue).collect())
}

impl<L: ChangeableLink> WatchedLink<L> {
    #[inline]
    fn take_changes(&mut self) {
        let Some((watch, _)) = &self.watch else { return };
        if watch.changes.load(Ordering::Acquire) != self.seen {
            self.apply_changes();
        }
    }

    #[cold]
    fn apply_changes(&mut self) {
        let Some((watch, _)) = &self.watch else { return };
        let mut state = watch.lock();
        self.seen = watch.changes.load(Ordering::Acquire);
        let Some(bell) = watch.bells.get(self.queue) else { return };
        bell.drain();
        if let Some(new) = state.opened.get_mut(self.queue).and_then(Option::take) {
            // Without descriptors left the queue stays closed until the next removal.
            self.is_closed = self.link.reopen(new).is_err();
        }
        if state.state == LinkState::Removed && !self.is_closed {
            self.is_closed = self.link.close(bell).is_ok();
        }
        self.link.set_mtu(state.mtu);
        if let Some(count) = state.receive_queues.filter(|_| state.state != LinkState::Removed) {
            self.link.set_receive_queues(count);
        }
        self.link.set_down(self.is_closed || state.state != LinkState::Up);
        self.changes = state.device_changes;
    }
}

impl<L: ChangeableLink> Link for WatchedLink<L> {
    fn capabilities(&self) -> LinkCaps {
        self.link.capabilities()
    }

    fn changes(&self) -> u32 {
        self.changes
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.link.transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> bool {
        self.link.flush(now)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.take_changes();
        if self.is_closed {
            return None;
        }
        self.link.receive(now, pool)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.link.poll_timeout()
    }

    fn pollable(&self) -> Option<RawFd> {
        self.link.pollable()
    }

    fn pollable_changes(&self) -> Option<RawFd> {
        let (watch, _) = self.watch.as_ref()?;
        watch.bells.get(self.queue).map(AsRawFd::as_raw_fd)
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        self.link.link_address()
    }

    fn follow_steering(&mut self, steering: &FlowSteering) {
        self.link.follow_steering(steering);
    }

    /// The first queue has the counters of the interface, so that their sum over queues counts each
    /// change once.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.link.visit(f);
        match &self.watch {
            Some((watch, _)) if self.queue == 0 => watch.lock().counters.visit(f),
            _ => LinkWatchCounters::default().visit(f),
        }
    }
}
