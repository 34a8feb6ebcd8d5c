//! The table of connections, half-open and closed ones beside them, and the way from a tuple to
//! one.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU32;

use abi::FlowId;
use base::Prng;
use hashbrown::HashTable;
use wire::Tuple;

use crate::api::SocketId;
use crate::hash::Keyed;
use crate::l5p::Connection;
use crate::l5p::nvme_tcp::port::Port;
use crate::l5p::tls::Session;
use crate::tcp::listen::SynCache;
use crate::tcp::time_wait::TimeWait;

use super::quasi::Quasi;

/// Slots that the table grows by.
const GROW_SLOTS: usize = 1024;

/// What a tuple leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

/// A tuple's hash and place; the tuple itself is looked up there.
#[derive(Debug)]
struct Route {
    hash: u64,
    place: Place,
}

/// What a slot of the table holds: the socket of a byte stream.
#[derive(Debug, Default)]
pub(crate) enum StreamSocket {
    #[default]
    Vacant,
    /// A connection of one transaction: the place of its quasi-TCB.
    Quasi(NonZeroU32),
    Tcp(Box<Connection>),
    /// A connection with a session between it and the application.
    Tls(Box<Connection>, Box<Session>),
}

/// A stream socket to look at.
pub(crate) enum StreamRef<'a> {
    Quasi(&'a Quasi),
    Tcp(&'a Connection),
    Tls(&'a Connection, &'a Session),
}

/// A stream socket to change.
pub(crate) enum StreamMut<'a> {
    Quasi(&'a mut Quasi),
    Tcp(&'a mut Connection),
    Tls(&'a mut Connection, &'a mut Session),
}

/// A connection, its session and its contexts for NVMe over TCP.
type Layers<'a> = (&'a mut Connection, Option<&'a mut Session>, &'a mut Option<Box<Port>>);

/// A slot of the table.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stream: StreamSocket,
    /// The device's contexts for NVMe over TCP on it.
    pub(crate) nvme: Option<Box<Port>>,
    generation: u32,
    /// It is in the list of connections with something to send.
    pub(crate) dirty: bool,
    /// A notice about it waits to be taken.
    pub(crate) noticed: bool,
    /// The listener whose backlog it counts in, until the application hears of it.
    pub(crate) accepted_by: Option<u32>,
    pub(crate) relayed: Relayed,
}

/// Whether the device is to relay a connection (`nsplice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Relayed {
    /// It is a socket like others.
    #[default]
    No,
    /// What is under way on it is to be acknowledged before the device is asked.
    Draining,
    /// The device was asked, and may own it already: it sends nothing, and no timer of it counts.
    Asked,
}

impl StreamSocket {
    /// Returns the connection, if it is whole.
    pub(crate) fn conn(&self) -> Option<&Connection> {
        match self {
            Self::Vacant | Self::Quasi(_) => None,
            Self::Tcp(conn) | Self::Tls(conn, _) => Some(conn),
        }
    }

    /// As [`Self::conn`], to change it.
    pub(crate) fn conn_mut(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Vacant | Self::Quasi(_) => None,
            Self::Tcp(conn) | Self::Tls(conn, _) => Some(conn),
        }
    }

    /// Returns the session.
    pub(crate) fn session(&self) -> Option<&Session> {
        match self {
            Self::Tls(_, session) => Some(session),
            _ => None,
        }
    }
}

impl Slot {
    /// Returns the connection, its session and the contexts for NVMe over TCP.
    pub(crate) fn layers_mut(&mut self) -> Option<Layers<'_>> {
        match &mut self.stream {
            StreamSocket::Vacant | StreamSocket::Quasi(_) => None,
            StreamSocket::Tcp(conn) => Some((conn, None, &mut self.nvme)),
            StreamSocket::Tls(conn, session) => Some((conn, Some(session), &mut self.nvme)),
        }
    }

    /// Puts a session between a connection without one and its socket.
    pub(crate) fn attach(&mut self, session: Session) {
        self.stream = match core::mem::take(&mut self.stream) {
            StreamSocket::Tcp(conn) => StreamSocket::Tls(conn, Box::new(session)),
            other => other,
        };
    }

    /// Removes the session.
    pub(crate) fn detach_session(&mut self) {
        self.stream = match core::mem::take(&mut self.stream) {
            StreamSocket::Tls(conn, _) => StreamSocket::Tcp(conn),
            other => other,
        };
    }
}

/// Words of the filter of [`Stirred`]: sixteen thousand bits for the hundreds of connections that
/// begin in a turn.
const FILTER_WORDS: usize = 256;

/// Quasi-TCBs that changed in this turn of the application. New ones have no route yet: most end
/// within the turn, and need none.
#[derive(Debug)]
struct Stirred {
    list: Vec<(u64, SocketId)>,
    /// A bit for each hash in the list, so that the list is looked through only where it may have
    /// what is looked for.
    filter: Box<[u64; FILTER_WORDS]>,
}

impl Stirred {
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

/// Connections by slot, and places by tuple.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    pub(crate) syn_cache: SynCache,
    pub(crate) time_wait: TimeWait,
    routes: HashTable<Route>,
    /// The connection whose tuple was looked up last, and the tuple's hash: most segments come in
    /// runs of one connection's. None where a route has changed since.
    last: Option<(Tuple, u64, u32)>,
    hash: Keyed,
    /// Quasi-TCBs, and which of their places are free.
    quasis: Vec<Option<Quasi>>,
    free_quasis: Vec<NonZeroU32>,
    stirred: Stirred,
    /// Our addresses, which quasi-TCBs name by number.
    pub(crate) addrs: Box<[IpAddr]>,
}

impl Table {
    pub(crate) fn new(prng: &mut Prng, addrs: Box<[IpAddr]>) -> Self {
        let hash = Keyed::random(prng);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            syn_cache: SynCache::default(),
            time_wait: TimeWait::default(),
            routes: HashTable::new(),
            last: None,
            hash,
            // Place 0 names none.
            quasis: vec![None],
            free_quasis: Vec::new(),
            stirred: Stirred::new(),
            addrs,
        }
    }

    /// Connections in the table.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The id that the next connection will have.
    pub(crate) fn next_id(&mut self) -> SocketId {
        if self.free.is_empty() {
            if self.slots.len() == self.slots.capacity() {
                // By steps, not by doubling: half of a large table would be empty.
                self.slots.reserve_exact(GROW_SLOTS);
            }
            self.slots.push(Slot {
                stream: StreamSocket::Vacant,
                nvme: None,
                generation: 0,
                dirty: false,
                noticed: false,
                accepted_by: None,
                relayed: Relayed::No,
            });
            self.free.push(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX));
        }
        let index = self.free.last().copied().unwrap_or(0);
        SocketId { index, generation: self.slots[index as usize].generation }
    }

    /// Puts a connection under the id that [`Self::next_id`] gave.
    /// `before` is where its tuple led.
    pub(crate) fn insert(&mut self, id: SocketId, conn: Connection, before: Option<Place>) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(id.index));
        self.route(&conn.tuple, Place::Connection(id.index), before);
        self.slots[id.index as usize].stream = StreamSocket::Tcp(Box::new(conn));
    }

    /// Puts a quasi-TCB under the id that [`Self::next_id`] gave. No tuple leads to it yet.
    pub(crate) fn insert_quasi(&mut self, id: SocketId, quasi: Quasi) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(id.index));
        let place = self.free_quasis.pop().unwrap_or_else(|| {
            self.quasis.push(None);
            let last = u32::try_from(self.quasis.len() - 1).unwrap_or(u32::MAX);
            NonZeroU32::new(last).unwrap_or(NonZeroU32::MAX)
        });
        self.stirred.push(quasi.hash, id);
        self.quasis[place.get() as usize] = Some(quasi);
        self.slots[id.index as usize].stream = StreamSocket::Quasi(place);
    }

    /// Notes that a quasi-TCB got its request.
    pub(crate) fn stir(&mut self, id: SocketId) {
        if let Some(hash) = self.quasi(id).map(|quasi| quasi.hash) {
            self.stirred.push(hash, id);
        }
    }

    /// The next quasi-TCB that was new or got its request in this turn.
    pub(crate) fn poll_stirred(&mut self) -> Option<SocketId> {
        self.stirred.pop()
    }

    /// Quasi-TCBs at the moment.
    pub(crate) fn quasis(&self) -> usize {
        self.quasis.len() - 1 - self.free_quasis.len()
    }

    fn quasi_place(&self, id: SocketId) -> Option<usize> {
        match self.slot(id)?.stream {
            StreamSocket::Quasi(place) => Some(place.get() as usize),
            _ => None,
        }
    }

    /// Returns the slot with that id, if it still has it.
    pub(crate) fn slot(&self, id: SocketId) -> Option<&Slot> {
        self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// As [`Self::slot`], to change it.
    pub(crate) fn slot_mut(&mut self, id: SocketId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// Returns the socket with that id.
    pub(crate) fn socket(&self, id: SocketId) -> Option<StreamRef<'_>> {
        Some(match &self.slot(id)?.stream {
            StreamSocket::Vacant => return None,
            StreamSocket::Quasi(place) => {
                StreamRef::Quasi(self.quasis.get(place.get() as usize)?.as_ref()?)
            }
            StreamSocket::Tcp(conn) => StreamRef::Tcp(conn),
            StreamSocket::Tls(conn, session) => StreamRef::Tls(conn, session),
        })
    }

    /// As [`Self::socket`], to change it.
    pub(crate) fn socket_mut(&mut self, id: SocketId) -> Option<StreamMut<'_>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        Some(match &mut slot.stream {
            StreamSocket::Vacant => return None,
            StreamSocket::Quasi(place) => {
                StreamMut::Quasi(self.quasis.get_mut(place.get() as usize)?.as_mut()?)
            }
            StreamSocket::Tcp(conn) => StreamMut::Tcp(conn),
            StreamSocket::Tls(conn, session) => StreamMut::Tls(conn, session),
        })
    }

    /// The quasi-TCB with that id, if it has one.
    pub(crate) fn quasi(&self, id: SocketId) -> Option<&Quasi> {
        self.quasis.get(self.quasi_place(id)?)?.as_ref()
    }

    /// As [`Self::quasi`], to change it.
    pub(crate) fn quasi_mut(&mut self, id: SocketId) -> Option<&mut Quasi> {
        let place = self.quasi_place(id)?;
        self.quasis.get_mut(place)?.as_mut()
    }

    /// Takes the quasi-TCB out of its slot, and its route away.
    pub(crate) fn take_quasi(&mut self, id: SocketId) -> Option<Quasi> {
        let place = self.quasi_place(id)?;
        let quasi = self.quasis[place].take()?;
        let stream = core::mem::take(&mut self.slots[id.index as usize].stream);
        if let StreamSocket::Quasi(place) = stream {
            self.free_quasis.push(place);
        }
        if quasi.routed {
            let tuple = quasi.tcb.tuple(&self.addrs);
            self.unroute(&tuple, Place::Connection(id.index));
        }
        Some(quasi)
    }

    /// Makes the tuple of a quasi-TCB lead to it.
    pub(crate) fn route_quasi(&mut self, id: SocketId) {
        let Some(place) = self.quasi_place(id) else { return };
        let Some(quasi) = self.quasis[place].as_mut().filter(|quasi| !quasi.routed) else { return };
        quasi.routed = true;
        self.last = None;
        let (hash, place) = (quasi.hash, Place::Connection(id.index));
        self.routes.insert_unique(hash, Route { hash, place }, |r| r.hash);
    }

    /// Puts a whole connection in the place of what was one without.
    pub(crate) fn make_whole(&mut self, id: SocketId, conn: Connection) {
        self.route(&conn.tuple, Place::Connection(id.index), None);
        self.slots[id.index as usize].stream = StreamSocket::Tcp(Box::new(conn));
    }

    /// Whether the id is that of a connection, whole or not.
    pub(crate) fn holds(&self, id: SocketId) -> bool {
        self.slot(id).is_some_and(|slot| !matches!(slot.stream, StreamSocket::Vacant))
    }

    /// Empties a slot; its id is never used again.
    pub(crate) fn remove(&mut self, index: u32) {
        self.last = None;
        let slot = &mut self.slots[index as usize];
        (slot.stream, slot.nvme) = (StreamSocket::Vacant, None);
        slot.generation = slot.generation.wrapping_add(1);
        slot.noticed = false;
        slot.accepted_by = None;
        slot.relayed = Relayed::No;
        self.free.push(index);
    }

    /// Returns whether the device is to relay the connection in a slot.
    pub(crate) fn relayed(&self, index: u32) -> Relayed {
        self.slots[index as usize].relayed
    }

    /// The id of the connection in a slot.
    pub(crate) fn id_of(&self, index: u32) -> SocketId {
        SocketId { index, generation: self.slots[index as usize].generation }
    }

    /// The connection with that id, if it still exists.
    pub(crate) fn get(&self, id: SocketId) -> Option<&Connection> {
        self.slot(id)?.stream.conn()
    }

    /// A connection's session, and the connection.
    pub(crate) fn with_session(&mut self, id: SocketId) -> Option<(&mut Session, &mut Connection)> {
        match &mut self.slot_mut(id)?.stream {
            StreamSocket::Tls(conn, session) => Some((session, conn)),
            _ => None,
        }
    }

    /// As [`Self::get`], to change it.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Option<&mut Connection> {
        self.slot_mut(id)?.stream.conn_mut()
    }

    /// What the tuple of a segment leads to, and its hash; gives a quasi-TCB its route where it is
    /// looked for.
    pub(crate) fn look_up(&mut self, tuple: &Tuple) -> (u64, Option<Place>) {
        if let Some((last, hash, index)) = &self.last {
            if last == tuple {
                return (*hash, Some(Place::Connection(*index)));
            }
        }
        let hash = self.hash.tuple(tuple);
        let place = self.place_of(tuple, hash);
        if let Some(Place::Connection(index)) = place {
            self.last = Some((*tuple, hash, index));
        }
        (hash, place)
    }

    /// The hash that tuples are looked up by.
    pub(crate) fn hash_of(&self, tuple: &Tuple) -> u64 {
        self.hash.tuple(tuple)
    }

    /// What a tuple leads to.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<Place> {
        self.find_hashed(tuple, self.hash.tuple(tuple))
    }

    fn find_hashed(&self, tuple: &Tuple, hash: u64) -> Option<Place> {
        self.routes.find(hash, |r| self.leads(r, hash, tuple)).map(|r| r.place)
    }

    fn place_of(&mut self, tuple: &Tuple, hash: u64) -> Option<Place> {
        if let Some(place) = self.find_hashed(tuple, hash) {
            return Some(place);
        }
        let id = self.stirred.find(hash)?;
        self.route_quasi(id);
        self.find_hashed(tuple, hash)
    }

    fn leads(&self, route: &Route, hash: u64, tuple: &Tuple) -> bool {
        route.hash == hash && self.tuple_at(route.place).as_ref() == Some(tuple)
    }

    fn tuple_at(&self, place: Place) -> Option<Tuple> {
        match place {
            Place::Connection(index) => {
                self.socket(self.id_of(index)).map(|socket| self.tuple_of(&socket))
            }
            Place::HalfOpen(slot) => self.syn_cache.at(slot).map(|e| e.tuple),
            Place::TimeWait(slot) => self.time_wait.at(slot).map(|r| r.tuple),
        }
    }

    /// Returns the tuple of a socket.
    pub(crate) fn tuple_of(&self, socket: &StreamRef<'_>) -> Tuple {
        match socket {
            StreamRef::Quasi(quasi) => quasi.tcb.tuple(&self.addrs),
            StreamRef::Tcp(conn) | StreamRef::Tls(conn, _) => conn.tuple,
        }
    }

    /// Makes a tuple lead somewhere; `before` is where it led.
    pub(crate) fn route(&mut self, tuple: &Tuple, place: Place, before: Option<Place>) {
        self.last = None;
        let hash = self.hash.tuple(tuple);
        let old = |r: &Route| r.hash == hash && Some(r.place) == before;
        match self.routes.find_mut(hash, old) {
            Some(route) => route.place = place,
            None => {
                self.routes.insert_unique(hash, Route { hash, place }, |r| r.hash);
            }
        }
    }

    /// Makes a tuple lead nowhere, if it led to `place`.
    pub(crate) fn unroute(&mut self, tuple: &Tuple, place: Place) {
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
    /// The connection that a flow of the device belongs to.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the flow's name")]
    pub(crate) const fn of_flow(flow: FlowId) -> Self {
        Self { index: flow.0 as u32, generation: (flow.0 >> 32) as u32 }
    }
}
