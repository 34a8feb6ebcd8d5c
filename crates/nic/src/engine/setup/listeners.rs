//! The ports whose SYNs the device answers.
//!
//! Called by the set-up engine for operations of the host and once per segment. Each queue has its
//! own listeners: several queues may listen on the same address and port, as with `SO_REUSEPORT`,
//! and RSS chooses the queue. A closed listener is kept while cookies sent for it are valid. The
//! number of listeners and the addresses of each are bounded.

use core::net::IpAddr;

use abi::Refusal;
use abi::setup::{ListenId, SetupListen};
use base::mix;
use hashbrown::HashTable;
use tcp_rules::cookie::SynCookies;
use wire::Endpoint;

use structures::slab::{Slab, SlabKey};

/// Maximum window scale: RFC 7323 section 2.3.
const WINDOW_SCALE_MAX: u8 = 14;

/// A listening port of one queue.
#[derive(Debug)]
pub(super) struct SetupListener {
    queue: usize,
    pub(super) listen: SetupListen,
    pub(super) cookies: SynCookies,
    /// The epoch in which the host closed the listener.
    closed: Option<u64>,
}

impl SetupListener {
    /// Returns whether SYNs are answered; a closed listener only accepts outstanding cookies.
    pub(super) const fn is_open(&self) -> bool {
        self.closed.is_none()
    }
}

/// One local endpoint of a listener.
#[derive(Debug)]
struct ListenerEndpoint {
    local: Endpoint,
    queue: usize,
    listener: SlabKey,
}

/// The listeners of all queues.
#[derive(Debug)]
pub(super) struct SetupListeners {
    slots: Slab<SetupListener>,
    index: HashTable<ListenerEndpoint>,
    max: usize,
    seed: u64,
}

impl SetupListeners {
    /// Creates an empty table for up to `max` listeners.
    pub(super) const fn new(max: usize, seed: u64) -> Self {
        Self { slots: Slab::new(), index: HashTable::new(), max, seed }
    }

    /// Returns whether there are no listeners, open or closed.
    pub(super) const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of open and of closed listeners.
    pub(super) fn count(&self) -> (usize, usize) {
        let open = self.slots.iter().filter(|(_, listener)| listener.is_open()).count();
        (open, self.slots.len() - open)
    }

    /// Returns the listener of a queue for segments to `local`.
    pub(super) fn find(&mut self, local: &Endpoint, queue: usize) -> Option<&mut SetupListener> {
        let key = self.key_of(local, queue)?;
        self.slots.get_mut(key)
    }

    fn key_of(&self, local: &Endpoint, queue: usize) -> Option<SlabKey> {
        let hash = hash(self.seed, local, queue);
        let is_same = |p: &ListenerEndpoint| p.local == *local && p.queue == queue;
        self.index.find(hash, is_same).map(|place| place.listener)
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// `DoesNotFit` if its parameters are invalid or its ID or an address is in use; `TableFull`.
    /// Nothing has changed then.
    pub(super) fn open(&mut self, queue: usize, listen: SetupListen) -> Result<(), Refusal> {
        let SetupListen { listener: name, port, window_scale, .. } = listen;
        let addrs = 1..=SetupListen::ADDRS_MAX;
        if port == 0 || !addrs.contains(&listen.addrs.len()) || window_scale > WINDOW_SCALE_MAX {
            return Err(Refusal::DoesNotFit);
        }
        let taken = |&addr: &IpAddr| {
            let key = self.key_of(&Endpoint { addr, port }, queue);
            key.and_then(|key| self.slots.get(key)).is_some_and(SetupListener::is_open)
        };
        let namesake = self.named(queue, name);
        if listen.addrs.iter().any(taken) || namesake.is_some_and(|(_, l)| l.is_open()) {
            return Err(Refusal::DoesNotFit);
        }
        if let Some((key, _)) = namesake {
            self.remove(key);
        }
        if self.slots.len() >= self.max {
            let closed = self.slots.iter().filter(|(_, listener)| !listener.is_open());
            let (oldest, _) = closed.min_by_key(|(_, l)| l.closed).ok_or(Refusal::TableFull)?;
            self.remove(oldest);
        }
        self.insert(queue, listen);
        Ok(())
    }

    fn insert(&mut self, queue: usize, listen: SetupListen) {
        let (addrs, port) = (listen.addrs.clone(), listen.port);
        let cookies = SynCookies::new(listen.secret.0);
        let listener = self.slots.insert(SetupListener { queue, listen, cookies, closed: None });
        for &addr in &addrs {
            let local = Endpoint { addr, port };
            let code = hash(self.seed, &local, queue);
            let same = |place: &ListenerEndpoint| place.local == local && place.queue == queue;
            match self.index.find_mut(code, same) {
                // The endpoint belonged to a closed listener, or the address is listed twice.
                Some(place) => place.listener = listener,
                None => {
                    let rehash = |p: &ListenerEndpoint| hash(self.seed, &p.local, p.queue);
                    self.index.insert_unique(
                        code,
                        ListenerEndpoint { local, queue, listener },
                        rehash,
                    );
                }
            }
        }
    }

    /// Closes a listener in `epoch`. An unknown ID is ignored.
    pub(super) fn close(&mut self, queue: usize, name: ListenId, epoch: u64) {
        let key = self.named(queue, name).map(|(key, _)| key);
        if let Some(listener) = key.and_then(|key| self.slots.get_mut(key)) {
            listener.closed.get_or_insert(epoch);
        }
    }

    /// Removes listeners that were closed too long before `epoch` for any cookie to be valid.
    pub(super) fn expire(&mut self, epoch: u64) {
        let is_over = |l: &SetupListener| l.closed.is_some_and(|closed| epoch > closed + 1);
        loop {
            let over = self.slots.iter().find(|(_, l)| is_over(l)).map(|(key, _)| key);
            let Some(key) = over else { return };
            self.remove(key);
        }
    }

    /// Removes all listeners.
    pub(super) fn clear(&mut self) {
        self.slots.drain(drop);
        self.index.clear();
    }

    fn named(&self, queue: usize, name: ListenId) -> Option<(SlabKey, &SetupListener)> {
        self.slots.iter().find(|(_, l)| l.queue == queue && l.listen.listener == name)
    }

    fn remove(&mut self, key: SlabKey) {
        let Some(SetupListener { queue, listen, .. }) = self.slots.remove(key) else { return };
        for &addr in &listen.addrs {
            let local = Endpoint { addr, port: listen.port };
            let code = hash(self.seed, &local, queue);
            // Another listener may have the endpoint by now.
            let same =
                |p: &ListenerEndpoint| p.local == local && p.queue == queue && p.listener == key;
            if let Ok(place) = self.index.find_entry(code, same) {
                place.remove();
            }
        }
    }
}

/// Hashes an endpoint and a queue. The table's keys come from the host, so a remote peer cannot
/// provoke collisions.
fn hash(seed: u64, local: &Endpoint, queue: usize) -> u64 {
    let (high, low) = match local.addr {
        IpAddr::V4(v4) => (0, u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h] = v6.segments().map(u64::from);
            (a << 48 | b << 32 | c << 16 | d, e << 48 | f << 32 | g << 16 | h)
        }
    };
    mix(seed, high ^ (queue as u64) << 16 ^ u64::from(local.port), low)
}
