//! The connection table (NiQUIC section 3.2): entries, their IDs, and the routes to them.
//!
//! Used by the engine. An entry is one direction of a connection. A datagram is routed by its
//! destination port, which determines the length of connection IDs, and then by one lookup: of port
//! and connection ID, or of the tuple if connection IDs are empty. Nothing is evicted: a full table
//! refuses new entries, since the host knows better which connections last.
//!
//! Invariants: all routes of a port have the same connection ID length; a route leads to one entry;
//! an entry lists the hash of each of its routes, so that they are removed with it.

use abi::quic::{QuicConnectionId, QuicId, QuicReorderBounds, QuicRouteKey};
use abi::{FlowId, Refusal};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use base::mix;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::quic::ShortHeaderPacket;

use super::keys::{PacketNumbers, QuicPacketKeys};
use structures::ReorderWindow;
use structures::slab::{Slab, SlabKey};

/// Maximum number of routes per entry.
pub(super) const ROUTES_MAX: usize = 16;

/// One direction of a connection.
pub(super) struct QuicEntry {
    pub(super) name: QuicId,
    pub(super) queue: usize,
    pub(super) flow: FlowId,
    pub(super) keys: QuicPacketKeys,
    pub(super) kind: QuicEntryKind,
}

/// The direction and its state.
pub(super) enum QuicEntryKind {
    /// Transmit.
    Transmit {
        /// The lowest packet number that may be used.
        next: u64,
    },
    /// Receive.
    Receive(Box<QuicReceiver>),
}

/// State of a receiving entry.
pub(super) struct QuicReceiver {
    pub(super) numbers: PacketNumbers,
    /// The reordering window, if ordering was requested.
    pub(super) order: Option<ReorderState>,
    /// Hashes of the entry's routes.
    routes: SmallVec<[u64; 2]>,
}

/// The waiting packets of a connection, and the bounds for them.
pub(super) struct ReorderState {
    pub(super) window: ReorderWindow,
    pub(super) bounds: QuicReorderBounds,
    /// Bytes of the waiting datagrams.
    pub(super) bytes: u32,
}

/// The routes of a UDP port.
#[derive(Debug)]
struct QuicPortRoutes {
    /// Length of connection IDs; 0 if routes are tuples.
    id_len: usize,
    routes: usize,
}

/// Size of a route in bytes.
#[cfg(test)]
pub(super) const ROUTE_BYTES: usize = size_of::<QuicRouteEntry>();

struct QuicRouteEntry {
    hash: u64,
    route: QuicRouteKey,
    key: SlabKey,
}

/// Result of routing a datagram by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteLookup {
    /// No route has its port.
    NotOurs,
    /// The packet has no short header.
    NotShort,
    /// No route has its connection ID or tuple.
    Unknown,
    /// The entry, and the length of its connection IDs.
    Entry(SlabKey, usize),
}

/// The connection table.
pub(super) struct QuicTable {
    entries: Slab<QuicEntry>,
    by_name: HashTable<SlabKey>,
    routes: HashTable<QuicRouteEntry>,
    ports: BTreeMap<u16, QuicPortRoutes>,
    seed: u64,
}

impl QuicReceiver {
    /// Creates the state of an entry without routes.
    pub(super) fn new(numbers: PacketNumbers, order: Option<ReorderState>) -> Self {
        Self { numbers, order, routes: SmallVec::new() }
    }
}

impl QuicTable {
    pub(super) fn new(seed: u64) -> Self {
        let (by_name, routes) = (HashTable::new(), HashTable::new());
        Self { entries: Slab::new(), by_name, routes, ports: BTreeMap::new(), seed }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn routes(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn get(&self, key: SlabKey) -> Option<&QuicEntry> {
        self.entries.get(key)
    }

    pub(super) fn get_mut(&mut self, key: SlabKey) -> Option<&mut QuicEntry> {
        self.entries.get_mut(key)
    }

    /// Returns the current key of a slab index.
    pub(super) fn key_at(&self, index: u32) -> Option<SlabKey> {
        self.entries.key_at(index)
    }

    /// Returns a host's entry with this ID.
    pub(super) fn find(&self, queue: usize, name: QuicId) -> Option<SlabKey> {
        let same = |&key: &SlabKey| {
            self.entries.get(key).is_some_and(|e| (e.queue, e.name) == (queue, name))
        };
        self.by_name.find(hash_name(self.seed, queue, name), same).copied()
    }

    /// Routes a datagram.
    pub(super) fn find_packet(&self, tuple: &Tuple, packet: &[u8]) -> RouteLookup {
        let Some(&QuicPortRoutes { id_len, .. }) = self.ports.get(&tuple.local.port) else {
            return RouteLookup::NotOurs;
        };
        let Some(short) = ShortHeaderPacket::parse(packet, id_len) else {
            return RouteLookup::NotShort;
        };
        let route = match QuicConnectionId::new(short.id) {
            Some(id) if id_len > 0 => QuicRouteKey::Id { port: tuple.local.port, id },
            _ => QuicRouteKey::Tuple(*tuple),
        };
        self.find_route(&route).map_or(RouteLookup::Unknown, |key| RouteLookup::Entry(key, id_len))
    }

    /// Inserts an entry with its routes. A transmit entry must not have any.
    pub(super) fn insert(
        &mut self,
        entry: QuicEntry,
        routes: &[QuicRouteKey],
    ) -> Result<(), Refusal> {
        if self.find(entry.queue, entry.name).is_some() {
            return Err(Refusal::DoesNotFit);
        }
        let (queue, name) = (entry.queue, entry.name);
        let key = self.entries.insert(entry);
        let (entries, seed) = (&self.entries, self.seed);
        let hash =
            |&key: &SlabKey| entries.get(key).map_or(0, |e| hash_name(seed, e.queue, e.name));
        self.by_name.insert_unique(hash_name(seed, queue, name), key, hash);
        let routed = routes.iter().try_for_each(|route| self.add_route(key, *route));
        if routed.is_err() {
            self.remove(key);
        }
        routed
    }

    /// Removes an entry and its routes.
    pub(super) fn remove(&mut self, key: SlabKey) -> Option<QuicEntry> {
        let mut entry = self.entries.remove(key)?;
        let hash = hash_name(self.seed, entry.queue, entry.name);
        if let Ok(found) = self.by_name.find_entry(hash, |&k| k == key) {
            found.remove();
        }
        if let QuicEntryKind::Receive(receive) = &mut entry.kind {
            for hash in receive.routes.drain(..) {
                self.unroute(hash, |to| to.key == key);
            }
        }
        Some(entry)
    }

    /// Adds a route to a receiving entry.
    pub(super) fn add_route(&mut self, key: SlabKey, route: QuicRouteKey) -> Result<(), Refusal> {
        let (port, id_len) = port_of(&route);
        let fits = match (&route, self.ports.get(&port)) {
            (QuicRouteKey::Id { .. }, _) if id_len == 0 => false,
            (_, port) => port.is_none_or(|port| port.id_len == id_len),
        };
        let taken = self.find_route(&route).is_some();
        let Some(QuicEntry { kind: QuicEntryKind::Receive(receive), .. }) =
            self.entries.get_mut(key)
        else {
            return Err(Refusal::DoesNotFit);
        };
        if !fits || taken || receive.routes.len() >= ROUTES_MAX {
            return Err(Refusal::DoesNotFit);
        }
        let hash = hash_route(self.seed, &route);
        receive.routes.push(hash);
        self.routes.insert_unique(hash, QuicRouteEntry { hash, route, key }, |to| to.hash);
        self.ports.entry(port).or_insert(QuicPortRoutes { id_len, routes: 0 }).routes += 1;
        Ok(())
    }

    /// Removes a route. Returns false if it does not lead to this entry.
    pub(super) fn remove_route(&mut self, key: SlabKey, route: &QuicRouteKey) -> bool {
        if self.find_route(route) != Some(key) {
            return false;
        }
        let hash = hash_route(self.seed, route);
        self.unroute(hash, |to| to.route == *route);
        if let Some(QuicEntry { kind: QuicEntryKind::Receive(receive), .. }) =
            self.entries.get_mut(key)
        {
            if let Some(at) = receive.routes.iter().position(|&known| known == hash) {
                receive.routes.swap_remove(at);
            }
        }
        true
    }

    /// Removes all entries and routes.
    pub(super) fn clear(&mut self) {
        self.entries.drain(drop);
        self.by_name.clear();
        self.routes.clear();
        self.ports.clear();
    }

    fn unroute(&mut self, hash: u64, is_it: impl Fn(&QuicRouteEntry) -> bool) {
        let Ok(found) = self.routes.find_entry(hash, is_it) else { return };
        let (QuicRouteEntry { route, .. }, _) = found.remove();
        let (number, _) = port_of(&route);
        let Some(port) = self.ports.get_mut(&number) else { return };
        port.routes -= 1;
        if port.routes == 0 {
            self.ports.remove(&number);
        }
    }

    fn find_route(&self, route: &QuicRouteKey) -> Option<SlabKey> {
        let found = self.routes.find(hash_route(self.seed, route), |to| to.route == *route)?;
        Some(found.key)
    }
}

/// Returns the port of a route and the length of its connection ID.
fn port_of(route: &QuicRouteKey) -> (u16, usize) {
    match route {
        QuicRouteKey::Id { port, id } => (*port, id.as_slice().len()),
        QuicRouteKey::Tuple(tuple) => (tuple.local.port, 0),
    }
}

const fn hash_name(seed: u64, queue: usize, name: QuicId) -> u64 {
    mix(seed, name.0, queue as u64)
}

/// Hashes a route. The host chooses the connection IDs in the table, but remote peers choose those
/// looked up; the seed keeps them from finding collisions.
fn hash_route(seed: u64, route: &QuicRouteKey) -> u64 {
    match route {
        QuicRouteKey::Tuple(tuple) => hash_tuple(seed, tuple),
        QuicRouteKey::Id { port, id } => {
            let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &b| word << 8 | u64::from(b));
            let mut words = id.as_slice().chunks(8).map(word);
            let mut next = || words.next().unwrap_or(0);
            let first = mix(seed, next(), next());
            mix(first, next(), u64::from(*port) << 8 | id.as_slice().len() as u64)
        }
    }
}
