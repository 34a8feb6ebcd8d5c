//! Listeners.
//!
//! Called by [`super::Streams`], which reports when a connection no longer waits for the
//! application, and by the services that begin connections. A listener's identifier is never
//! reused. Half-open connections are in the SYN cache; only their number is here.

use alloc::vec::Vec;

use wire::Tuple;

use crate::api::ListenerId;
use crate::tcp::listen::ListeningPort;

/// Listeners, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Option<ListeningPort>>);

impl Listeners {
    /// Adds a listener. Returns `None` if there were 2^32 already.
    pub(crate) fn insert(&mut self, listener: ListeningPort) -> Option<ListenerId> {
        let id = u32::try_from(self.0.len()).ok()?;
        self.0.push(Some(listener));
        Some(ListenerId(id))
    }

    /// Removes and returns a listener.
    pub(crate) fn remove(&mut self, listener: u32) -> Option<ListeningPort> {
        self.0.get_mut(listener as usize)?.take()
    }

    /// Returns a listener.
    pub(crate) fn get(&self, listener: u32) -> Option<&ListeningPort> {
        self.0.get(listener as usize)?.as_ref()
    }

    /// Returns [`Self::get`], mutable.
    pub(crate) fn get_mut(&mut self, listener: u32) -> Option<&mut ListeningPort> {
        self.0.get_mut(listener as usize)?.as_mut()
    }

    /// Returns the listeners that have not been removed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ListeningPort> {
        self.0.iter().flatten()
    }

    /// Returns all identifiers assigned so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns the listener for a tuple's local endpoint.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<u32> {
        let fits = |l: &ListeningPort| {
            l.port == tuple.local.port && l.addr.is_none_or(|a| a == tuple.local.addr)
        };
        let index = self.0.iter().position(|l| l.as_ref().is_some_and(fits))?;
        u32::try_from(index).ok()
    }

    /// Returns the maximum segment length of a listener's connections: `TCP_MAXSEG`.
    pub(crate) fn max_segment(&self, listener: u32) -> u16 {
        self.get(listener).map_or(u16::MAX, |listener| listener.max_segment)
    }

    /// Notes that a connection no longer waits in the backlog: the application has taken its
    /// notice, or it has ended.
    pub(crate) fn backlog_dec(&mut self, listener: u32) {
        if let Some(listener) = self.get_mut(listener) {
            listener.accept_queue_len = listener.accept_queue_len.saturating_sub(1);
        }
    }
}
