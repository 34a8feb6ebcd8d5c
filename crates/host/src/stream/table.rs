//! The table of stream sockets, of half-open connections and of tuples in TIME-WAIT, and the routes
//! from tuples to them.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use core::num::NonZeroU32;

use abi::FlowId;
use base::Prng;
use hashbrown::HashTable;
use wire::Tuple;

use crate::api::SocketId;
use crate::hash::KeyedHashBuilder;
use crate::l5p::L5pConnection;
use crate::l5p::nvme_tcp::rx_offload::NvmeRxOffload;
use crate::l5p::tls::HostTlsSession;
use crate::tcp::listen::SynCache;
use crate::tcp::time_wait::HostTimeWaitTable;

use super::lazy_tcb::LazyTcb;

/// Slots by which the table grows.
const GROW_SLOTS: usize = 1024;

/// Owner of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TupleOwner {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

/// A tuple's hash and place; the tuple itself is stored there.
#[derive(Debug)]
struct TupleRoute {
    hash: u64,
    place: TupleOwner,
}

/// Content of a slot.
#[derive(Debug, Default)]
pub(crate) enum StreamSocket {
    #[default]
    Vacant,
    /// A connection of one transaction: the index of its quasi-TCB.
    LazyTcb(NonZeroU32),
    Tcp(Box<L5pConnection>),
    Tls(Box<TlsStreamSocket>),
}

/// A connection with a TLS session between it and the application.
#[derive(Debug)]
pub(crate) struct TlsStreamSocket {
    conn: Box<L5pConnection>,
    session: HostTlsSession,
}

/// Shared reference to a stream socket.
pub(crate) enum StreamRef<'a> {
    LazyTcb(&'a LazyTcb),
    Tcp(&'a L5pConnection),
    Tls(&'a L5pConnection, &'a HostTlsSession),
}

/// Exclusive reference to a stream socket.
pub(crate) enum StreamMut<'a> {
    LazyTcb(&'a mut LazyTcb),
    Tcp(&'a mut L5pConnection),
    Tls(&'a mut L5pConnection, &'a mut HostTlsSession),
}

/// A connection, its TLS session and its contexts for NVMe/TCP.
type ConnectionLayers<'a> =
    (&'a mut L5pConnection, Option<&'a mut HostTlsSession>, &'a mut Option<Box<NvmeRxOffload>>);

/// A slot of the table.
#[derive(Debug)]
pub(crate) struct SocketSlot {
    pub(crate) stream: StreamSocket,
    /// The device's contexts for NVMe/TCP.
    pub(crate) nvme: Option<Box<NvmeRxOffload>>,
    generation: u32,
    /// The slot is in the list of dirty connections.
    pub(crate) dirty: bool,
    /// A notice about the socket is queued.
    pub(crate) notice_queued: bool,
    /// The listener in whose backlog the connection counts, until the application takes the notice.
    pub(crate) accepted_by: Option<u32>,
    pub(crate) splice_phase: SplicePhase,
}

/// Phase of a connection on its way to a splice (`nsplice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum SplicePhase {
    /// The socket is not being spliced.
    #[default]
    No,
    /// Bytes in flight must be acknowledged before the device is asked.
    Draining,
    /// The device was asked, and may own the connection already: the host sends nothing on it and
    /// ignores its timers.
    Requested,
}

impl StreamSocket {
    /// Returns the connection, if it has a TCB.
    pub(crate) fn conn(&self) -> Option<&L5pConnection> {
        match self {
            Self::Vacant | Self::LazyTcb(_) => None,
            Self::Tcp(conn) => Some(conn),
            Self::Tls(tls) => Some(&tls.conn),
        }
    }

    /// Returns [`Self::conn`], mutable.
    pub(crate) fn conn_mut(&mut self) -> Option<&mut L5pConnection> {
        match self {
            Self::Vacant | Self::LazyTcb(_) => None,
            Self::Tcp(conn) => Some(conn),
            Self::Tls(tls) => Some(&mut tls.conn),
        }
    }

    /// Returns the TLS session.
    pub(crate) fn session(&self) -> Option<&HostTlsSession> {
        match self {
            Self::Tls(tls) => Some(&tls.session),
            _ => None,
        }
    }
}

impl SocketSlot {
    /// Returns the connection, its TLS session and its contexts for NVMe/TCP.
    pub(crate) fn layers_mut(&mut self) -> Option<ConnectionLayers<'_>> {
        match &mut self.stream {
            StreamSocket::Vacant | StreamSocket::LazyTcb(_) => None,
            StreamSocket::Tcp(conn) => Some((conn, None, &mut self.nvme)),
            StreamSocket::Tls(tls) => {
                let TlsStreamSocket { conn, session } = &mut **tls;
                Some((conn, Some(session), &mut self.nvme))
            }
        }
    }

    /// Inserts a TLS session between a connection without one and its socket.
    pub(crate) fn attach(&mut self, session: HostTlsSession) {
        self.stream = match core::mem::take(&mut self.stream) {
            StreamSocket::Tcp(conn) => {
                StreamSocket::Tls(Box::new(TlsStreamSocket { conn, session }))
            }
            other => other,
        };
    }

    /// Removes the TLS session.
    pub(crate) fn detach_session(&mut self) {
        self.stream = match core::mem::take(&mut self.stream) {
            StreamSocket::Tls(tls) => StreamSocket::Tcp(tls.conn),
            other => other,
        };
    }
}

/// Words of the filter of [`TouchedSet`]: 16,384 bits, for the hundreds of connections that begin
/// in a turn.
const FILTER_WORDS: usize = 256;

/// Quasi-TCBs that were created or received their request in this turn of the application. New ones
/// have no route yet: most end within the turn and need none.
#[derive(Debug)]
struct TouchedSet {
    list: Vec<(u64, SocketId)>,
    /// A bit for each hash in the list (a Bloom filter with one hash function), so that most misses
    /// do not search the list.
    filter: Box<[u64; FILTER_WORDS]>,
}

impl TouchedSet {
    fn new() -> Self {
        Self { list: Vec::new(), filter: Box::new([0; FILTER_WORDS]) }
    }

    const fn bit(hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash & 63))
    }

    fn push(&mut self, hash: u64, id: SocketId) {
        let (word, bit) = Self::bit(hash);
        self.filter[word] |= bit;
        self.list.push((hash, id));
    }

    fn find(&self, hash: u64) -> Option<SocketId> {
        let (word, bit) = Self::bit(hash);
        if self.filter[word] & bit == 0 {
            return None;
        }
        self.list.iter().find(|(h, _)| *h == hash).map(|(_, id)| *id)
    }

    fn pop(&mut self) -> Option<SocketId> {
        let popped = self.list.pop();
        match popped {
            Some((_, id)) => {
                if self.list.is_empty() {
                    self.filter.fill(0);
                }
                Some(id)
            }
            None => None,
        }
    }
}

/// Stream sockets by slot, and their places by tuple.
#[derive(Debug)]
pub(crate) struct SocketTable {
    pub(crate) slots: Vec<SocketSlot>,
    free: Vec<u32>,
    pub(crate) syn_cache: SynCache,
    pub(crate) time_wait: HostTimeWaitTable,
    routes: HashTable<TupleRoute>,
    /// Tuple, hash and slot of the connection that was looked up last, since most segments arrive
    /// in runs of one connection. `None` if a route has changed since.
    last: Option<(Tuple, u64, u32)>,
    hash: KeyedHashBuilder,
    /// Quasi-TCBs by index, and the free indices.
    lazy_tcbs: Vec<Option<LazyTcb>>,
    free_lazy_tcbs: Vec<NonZeroU32>,
    touched: TouchedSet,
    /// Local addresses, which quasi-TCBs store as an index.
    pub(crate) addrs: Box<[IpAddr]>,
}

impl SocketTable {
    /// Returns the local addresses.
    pub(crate) fn local_addrs(&self) -> Box<[IpAddr]> {
        self.addrs.iter().copied().filter(|addr| !addr.is_unspecified()).collect()
    }

    /// Replaces the local addresses. No quasi-TCB may have one that is removed: quasi-TCBs name
    /// their address by its position, so the others keep theirs.
    pub(crate) fn replace_addrs(&mut self, addrs: impl Iterator<Item = IpAddr>) {
        let new: Vec<IpAddr> = addrs.collect();
        let free = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let kept = |&addr: &IpAddr| if new.contains(&addr) { addr } else { free };
        let mut all: Vec<IpAddr> = self.addrs.iter().map(kept).collect();
        for &addr in &new {
            if all.contains(&addr) {
                continue;
            }
            match all.iter_mut().find(|slot| **slot == free) {
                Some(slot) => *slot = addr,
                None => all.push(addr),
            }
        }
        self.addrs = all.into();
    }

    pub(crate) fn new(prng: &mut Prng, addrs: Box<[IpAddr]>) -> Self {
        let hash = KeyedHashBuilder::random(prng);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            syn_cache: SynCache::default(),
            time_wait: HostTimeWaitTable::default(),
            routes: HashTable::new(),
            last: None,
            hash,
            // Index 0 is unused.
            lazy_tcbs: vec![None],
            free_lazy_tcbs: Vec::new(),
            touched: TouchedSet::new(),
            addrs,
        }
    }

    /// Returns the number of connections in the table.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the identifier that the next connection will have.
    pub(crate) fn next_id(&mut self) -> SocketId {
        if self.free.is_empty() {
            if self.slots.len() == self.slots.capacity() {
                // In steps, not by doubling: half of a large table would be empty.
                self.slots.reserve_exact(GROW_SLOTS);
            }
            self.slots.push(SocketSlot {
                stream: StreamSocket::Vacant,
                nvme: None,
                generation: 0,
                dirty: false,
                notice_queued: false,
                accepted_by: None,
                splice_phase: SplicePhase::No,
            });
            self.free.push(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX));
        }
        let index = self.free.last().copied().unwrap_or(0);
        SocketId { index, generation: self.slots[index as usize].generation }
    }

    /// Inserts a connection under the identifier that [`Self::next_id`] returned. `before` is the
    /// previous place of its tuple.
    pub(crate) fn insert(&mut self, id: SocketId, conn: L5pConnection, before: Option<TupleOwner>) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(id.index));
        self.route(&conn.tuple, TupleOwner::Connection(id.index), before);
        self.slots[id.index as usize].stream = StreamSocket::Tcp(Box::new(conn));
    }

    /// Inserts a quasi-TCB under the identifier that [`Self::next_id`] returned. It has no route
    /// yet.
    pub(crate) fn insert_lazy_tcb(&mut self, id: SocketId, quasi: LazyTcb) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(id.index));
        let place = self.free_lazy_tcbs.pop().unwrap_or_else(|| {
            self.lazy_tcbs.push(None);
            let last = u32::try_from(self.lazy_tcbs.len() - 1).unwrap_or(u32::MAX);
            NonZeroU32::new(last).unwrap_or(NonZeroU32::MAX)
        });
        self.touched.push(quasi.hash, id);
        self.lazy_tcbs[place.get() as usize] = Some(quasi);
        self.slots[id.index as usize].stream = StreamSocket::LazyTcb(place);
    }

    /// Notes that a quasi-TCB received its request.
    pub(crate) fn note_request(&mut self, id: SocketId) {
        if let Some(hash) = self.lazy_tcb(id).map(|quasi| quasi.hash) {
            self.touched.push(hash, id);
        }
    }

    /// Removes and returns a quasi-TCB that was created or received its request in this turn.
    pub(crate) fn poll_touched(&mut self) -> Option<SocketId> {
        self.touched.pop()
    }

    /// Returns the number of quasi-TCBs.
    pub(crate) fn lazy_tcb_count(&self) -> usize {
        self.lazy_tcbs.len() - 1 - self.free_lazy_tcbs.len()
    }

    fn quasi_place(&self, id: SocketId) -> Option<usize> {
        match self.slot(id)?.stream {
            StreamSocket::LazyTcb(place) => Some(place.get() as usize),
            _ => None,
        }
    }

    /// Returns the slot of an identifier, unless it is stale.
    pub(crate) fn slot(&self, id: SocketId) -> Option<&SocketSlot> {
        self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// Returns [`Self::slot`], mutable.
    pub(crate) fn slot_mut(&mut self, id: SocketId) -> Option<&mut SocketSlot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// Returns the socket with this identifier.
    pub(crate) fn socket(&self, id: SocketId) -> Option<StreamRef<'_>> {
        Some(match &self.slot(id)?.stream {
            StreamSocket::Vacant => return None,
            StreamSocket::LazyTcb(place) => {
                StreamRef::LazyTcb(self.lazy_tcbs.get(place.get() as usize)?.as_ref()?)
            }
            StreamSocket::Tcp(conn) => StreamRef::Tcp(conn),
            StreamSocket::Tls(tls) => StreamRef::Tls(&tls.conn, &tls.session),
        })
    }

    /// Returns [`Self::socket`], mutable.
    pub(crate) fn socket_mut(&mut self, id: SocketId) -> Option<StreamMut<'_>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        Some(match &mut slot.stream {
            StreamSocket::Vacant => return None,
            StreamSocket::LazyTcb(place) => {
                StreamMut::LazyTcb(self.lazy_tcbs.get_mut(place.get() as usize)?.as_mut()?)
            }
            StreamSocket::Tcp(conn) => StreamMut::Tcp(conn),
            StreamSocket::Tls(tls) => StreamMut::Tls(&mut tls.conn, &mut tls.session),
        })
    }

    /// Returns the quasi-TCB with this identifier.
    pub(crate) fn lazy_tcb(&self, id: SocketId) -> Option<&LazyTcb> {
        self.lazy_tcbs.get(self.quasi_place(id)?)?.as_ref()
    }

    /// Returns [`Self::lazy_tcb`], mutable.
    pub(crate) fn lazy_tcb_mut(&mut self, id: SocketId) -> Option<&mut LazyTcb> {
        let place = self.quasi_place(id)?;
        self.lazy_tcbs.get_mut(place)?.as_mut()
    }

    /// Removes a quasi-TCB from its slot, and its route.
    pub(crate) fn take_lazy_tcb(&mut self, id: SocketId) -> Option<LazyTcb> {
        let place = self.vacate_lazy_tcb(id)?;
        self.lazy_tcbs[place].take()
    }

    /// Drops a quasi-TCB, and its route.
    pub(crate) fn drop_lazy_tcb(&mut self, id: SocketId) {
        if let Some(place) = self.vacate_lazy_tcb(id) {
            self.lazy_tcbs[place] = None;
        }
    }

    /// Empties the slot of a quasi-TCB and removes its route. Returns its index, for the caller to
    /// remove it.
    fn vacate_lazy_tcb(&mut self, id: SocketId) -> Option<usize> {
        let place = self.quasi_place(id)?;
        let quasi = self.lazy_tcbs[place].as_ref()?;
        let routed = quasi.routed.then(|| quasi.tcb.tuple(&self.addrs));
        let stream = core::mem::take(&mut self.slots[id.index as usize].stream);
        if let StreamSocket::LazyTcb(place) = stream {
            self.free_lazy_tcbs.push(place);
        }
        if let Some(tuple) = routed {
            self.unroute(&tuple, TupleOwner::Connection(id.index));
        }
        Some(place)
    }

    /// Adds the route of a quasi-TCB.
    pub(crate) fn route_lazy_tcb(&mut self, id: SocketId) {
        let Some(place) = self.quasi_place(id) else { return };
        let Some(quasi) = self.lazy_tcbs[place].as_mut().filter(|quasi| !quasi.routed) else {
            return;
        };
        quasi.routed = true;
        self.last = None;
        let (hash, place) = (quasi.hash, TupleOwner::Connection(id.index));
        self.routes.insert_unique(hash, TupleRoute { hash, place }, |r| r.hash);
    }

    /// Inserts a connection of another host under the identifier that [`Self::next_id`] returned.
    /// Its tuple has no route.
    pub(crate) fn insert_moved(&mut self, id: SocketId, stream: StreamSocket) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(id.index));
        if let Some(conn) = stream.conn() {
            self.route(&conn.tuple, TupleOwner::Connection(id.index), None);
        }
        self.slots[id.index as usize].stream = stream;
    }

    /// Stores the connection that a quasi-TCB was promoted to.
    pub(crate) fn insert_promoted(&mut self, id: SocketId, conn: L5pConnection) {
        self.route(&conn.tuple, TupleOwner::Connection(id.index), None);
        self.slots[id.index as usize].stream = StreamSocket::Tcp(Box::new(conn));
    }

    /// Returns whether the identifier is that of a connection, with a TCB or a quasi-TCB.
    pub(crate) fn contains(&self, id: SocketId) -> bool {
        self.slot(id).is_some_and(|slot| !matches!(slot.stream, StreamSocket::Vacant))
    }

    /// Empties a slot; its identifier becomes stale.
    pub(crate) fn remove(&mut self, index: u32) {
        self.last = None;
        let slot = &mut self.slots[index as usize];
        (slot.stream, slot.nvme) = (StreamSocket::Vacant, None);
        slot.generation = slot.generation.wrapping_add(1);
        slot.notice_queued = false;
        slot.accepted_by = None;
        slot.splice_phase = SplicePhase::No;
        self.free.push(index);
    }

    /// Returns the splice phase of the connection in a slot.
    pub(crate) fn splice_phase(&self, index: u32) -> SplicePhase {
        self.slots[index as usize].splice_phase
    }

    /// Returns the identifier of the connection in a slot.
    pub(crate) fn id_of(&self, index: u32) -> SocketId {
        SocketId { index, generation: self.slots[index as usize].generation }
    }

    /// Returns the connection with this identifier, if it still exists and has a TCB.
    pub(crate) fn get(&self, id: SocketId) -> Option<&L5pConnection> {
        self.slot(id)?.stream.conn()
    }

    /// Returns a connection and its TLS session.
    pub(crate) fn with_session(
        &mut self,
        id: SocketId,
    ) -> Option<(&mut HostTlsSession, &mut L5pConnection)> {
        match &mut self.slot_mut(id)?.stream {
            StreamSocket::Tls(tls) => Some((&mut tls.session, &mut tls.conn)),
            _ => None,
        }
    }

    /// Returns [`Self::get`], mutable.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Option<&mut L5pConnection> {
        self.slot_mut(id)?.stream.conn_mut()
    }

    /// Returns the hash and the place of a segment's tuple. Adds the route of a new quasi-TCB if
    /// the tuple is its.
    pub(crate) fn look_up(&mut self, tuple: &Tuple) -> (u64, Option<TupleOwner>) {
        if let Some((last, hash, index)) = &self.last {
            if last == tuple {
                return (*hash, Some(TupleOwner::Connection(*index)));
            }
        }
        let hash = self.hash.tuple(tuple);
        let place = self.owner_of(tuple, hash);
        if let Some(TupleOwner::Connection(index)) = place {
            self.last = Some((*tuple, hash, index));
        }
        (hash, place)
    }

    /// Returns the hash of a tuple in this table.
    pub(crate) fn hash_of(&self, tuple: &Tuple) -> u64 {
        self.hash.tuple(tuple)
    }

    /// Returns the place of a tuple.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<TupleOwner> {
        self.find_hashed(tuple, self.hash.tuple(tuple))
    }

    fn find_hashed(&self, tuple: &Tuple, hash: u64) -> Option<TupleOwner> {
        self.routes.find(hash, |r| self.leads(r, hash, tuple)).map(|r| r.place)
    }

    fn owner_of(&mut self, tuple: &Tuple, hash: u64) -> Option<TupleOwner> {
        if let Some(place) = self.find_hashed(tuple, hash) {
            return Some(place);
        }
        let id = self.touched.find(hash)?;
        self.route_lazy_tcb(id);
        self.find_hashed(tuple, hash)
    }

    fn leads(&self, route: &TupleRoute, hash: u64, tuple: &Tuple) -> bool {
        route.hash == hash && self.tuple_at(route.place).as_ref() == Some(tuple)
    }

    /// Returns the tuple at a place, if there is one, and the next place: all half-open
    /// connections, then all sockets, then all tuples in TIME-WAIT. Returns `None` at the end.
    pub(crate) fn place_and_next(&self, place: TupleOwner) -> Option<(Option<Tuple>, TupleOwner)> {
        let next = match place {
            TupleOwner::HalfOpen(slot) if self.syn_cache.is_beyond(slot) => {
                return Some((None, TupleOwner::Connection(0)));
            }
            TupleOwner::Connection(index) if index as usize >= self.slots.len() => {
                return Some((None, TupleOwner::TimeWait(0)));
            }
            TupleOwner::TimeWait(slot) if self.time_wait.is_beyond(slot) => return None,
            TupleOwner::HalfOpen(slot) => TupleOwner::HalfOpen(slot + 1),
            TupleOwner::Connection(index) => TupleOwner::Connection(index + 1),
            TupleOwner::TimeWait(slot) => TupleOwner::TimeWait(slot + 1),
        };
        Some((self.tuple_at(place), next))
    }

    fn tuple_at(&self, place: TupleOwner) -> Option<Tuple> {
        match place {
            TupleOwner::Connection(index) => {
                self.socket(self.id_of(index)).map(|socket| self.tuple_of(&socket))
            }
            TupleOwner::HalfOpen(slot) => self.syn_cache.get(slot).map(|e| e.tuple),
            TupleOwner::TimeWait(slot) => self.time_wait.get(slot).map(|r| r.tuple),
        }
    }

    /// Returns the tuple of a socket.
    pub(crate) fn tuple_of(&self, socket: &StreamRef<'_>) -> Tuple {
        match socket {
            StreamRef::LazyTcb(quasi) => quasi.tcb.tuple(&self.addrs),
            StreamRef::Tcp(conn) | StreamRef::Tls(conn, _) => conn.tuple,
        }
    }

    /// Sets the place of a tuple; `before` is its previous place.
    pub(crate) fn route(&mut self, tuple: &Tuple, place: TupleOwner, before: Option<TupleOwner>) {
        self.last = None;
        let hash = self.hash.tuple(tuple);
        let old = |r: &TupleRoute| r.hash == hash && Some(r.place) == before;
        match self.routes.find_mut(hash, old) {
            Some(route) => route.place = place,
            None => {
                self.routes.insert_unique(hash, TupleRoute { hash, place }, |r| r.hash);
            }
        }
    }

    /// Removes the route of a tuple, if it leads to `place`.
    pub(crate) fn unroute(&mut self, tuple: &Tuple, place: TupleOwner) {
        self.last = None;
        let hash = self.hash.tuple(tuple);
        if let Ok(entry) = self.routes.find_entry(hash, |r| r.hash == hash && r.place == place) {
            entry.remove();
        }
    }
}

impl From<SocketId> for FlowId {
    fn from(id: SocketId) -> Self {
        Self(u64::from(id.generation) << 32 | u64::from(id.index))
    }
}

impl SocketId {
    /// Returns the identifier of the connection that a flow belongs to.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the flow's name")]
    pub(crate) const fn of_flow(flow: FlowId) -> Self {
        Self { index: flow.0 as u32, generation: (flow.0 >> 32) as u32 }
    }
}
