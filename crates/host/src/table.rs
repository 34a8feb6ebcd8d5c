//! The table of connections, half-open and closed ones beside them, and the way from a tuple to
//! one.

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::FlowId;
use base::Prng;
use hashbrown::HashTable;
use wire::Tuple;

use crate::api::SocketId;
use crate::hash::Keyed;
use crate::l5p::tls::Session;
use crate::tcp::conn::Connection;
use crate::tcp::listen::SynCache;
use crate::tcp::time_wait::TimeWait;

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

/// A slot of the table.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) conn: Option<Box<Connection>>,
    /// What lies between it and its socket.
    pub(crate) session: Option<Box<Session>>,
    generation: u32,
    /// It is in the list of connections with something to send.
    pub(crate) dirty: bool,
    /// A notice about it waits to be taken.
    pub(crate) noticed: bool,
    /// The listener whose backlog it counts in, until the application hears of it.
    pub(crate) accepted_by: Option<u32>,
}

/// Connections by slot, and places by tuple.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    pub(crate) syn_cache: SynCache,
    pub(crate) time_wait: TimeWait,
    routes: HashTable<Route>,
    hash: Keyed,
}

impl Table {
    pub(crate) fn new(prng: &mut Prng) -> Self {
        let hash = Keyed::random(prng);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            syn_cache: SynCache::default(),
            time_wait: TimeWait::default(),
            routes: HashTable::new(),
            hash,
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
                conn: None,
                session: None,
                generation: 0,
                dirty: false,
                noticed: false,
                accepted_by: None,
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
        self.slots[id.index as usize].conn = Some(Box::new(conn));
    }

    /// Empties a slot; its id is never used again.
    pub(crate) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.conn = None;
        slot.session = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.noticed = false;
        slot.accepted_by = None;
        self.free.push(index);
    }

    /// The id of the connection in a slot.
    pub(crate) fn id_of(&self, index: u32) -> SocketId {
        SocketId { index, generation: self.slots[index as usize].generation }
    }

    /// The connection with that id, if it still exists.
    pub(crate) fn get(&self, id: SocketId) -> Option<&Connection> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { slot.conn.as_deref() } else { None }
    }

    /// A connection's session, and the connection.
    pub(crate) fn with_session(&mut self, id: SocketId) -> Option<(&mut Session, &mut Connection)> {
        self.get(id)?;
        let slot = self.slots.get_mut(id.index())?;
        Some((slot.session.as_deref_mut()?, slot.conn.as_deref_mut()?))
    }

    /// As [`Self::get`], to change it.
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.conn.as_deref_mut() } else { None }
    }

    /// What a tuple leads to.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<Place> {
        let hash = self.hash.tuple(tuple);
        self.routes.find(hash, |r| self.leads(r, hash, tuple)).map(|r| r.place)
    }

    fn leads(&self, route: &Route, hash: u64, tuple: &Tuple) -> bool {
        route.hash == hash && self.tuple_at(route.place) == Some(tuple)
    }

    fn tuple_at(&self, place: Place) -> Option<&Tuple> {
        match place {
            Place::Connection(index) => {
                self.slots.get(index as usize)?.conn.as_deref().map(|c| &c.tuple)
            }
            Place::HalfOpen(slot) => self.syn_cache.at(slot).map(|e| &e.tuple),
            Place::TimeWait(slot) => self.time_wait.at(slot).map(|r| &r.tuple),
        }
    }

    /// Makes a tuple lead somewhere; `before` is where it led.
    pub(crate) fn route(&mut self, tuple: &Tuple, place: Place, before: Option<Place>) {
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
