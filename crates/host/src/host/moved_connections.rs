//! Moves of open connections to the host of another queue ([`abi::steering`]).
//!
//! Called by the driver (crate `node`). The connections of a steering entry that was moved can
//! follow it, each when it is idle: the driver asks [`Host::queue_to_follow`], asks the application
//! to give the connection up, and carries it to the other host, whose application accepts it.
//!
//! Invariant: a connection is taken over before a segment that its former host has returned is
//! handled. So no segment of it meets two hosts without the connection, one of which would answer
//! with a reset.

use abi::steering::OwnQueue;
use base::Instant;

use super::shutdown::ShutdownStage;
use super::{Host, Services};
use crate::accept::drop_half_open;
use crate::api::{SocketError, SocketId};
use crate::stream::moving::MovedConnection;
use crate::stream::table::TupleOwner;

/// Flag that entries of a queue were moved away, looked up again after each change of the table.
#[derive(Debug, Default)]
pub(super) struct MovedAway {
    /// Number of changes at the last look; `None` before the first.
    changes: Option<u32>,
    any: bool,
}

impl MovedAway {
    fn look(&mut self, own: &OwnQueue) -> bool {
        let changes = own.steering.changes();
        if self.changes != Some(changes) {
            let mut owners = (0..own.steering.entries()).map(|n| own.steering.owners_of_entry(n));
            self.any = owners.any(|owners| owners.former == Some(own.index));
            self.changes = Some(changes);
        }
        self.any
    }
}

impl Host {
    /// Returns whether connections may have to follow entries of the flow steering that were moved
    /// away from this host's queue.
    pub fn has_connections_to_move(&mut self) -> bool {
        let Services { own_queue, moved_away, ending, .. } = &mut self.services;
        *ending == ShutdownStage::Running
            && own_queue.as_ref().is_some_and(|own| moved_away.look(own))
    }

    /// Returns the queue that a connection is to follow its steering entry to. Returns `None` if
    /// the entry was not moved, and if the connection cannot move now: it was not accepted, it ends
    /// or is being spliced, bytes of it are in flight or incomplete, or it uses an inspection or
    /// contexts for NVMe/TCP.
    #[must_use]
    pub fn queue_to_follow(&self, socket: SocketId) -> Option<usize> {
        let Services { own_queue, streams, .. } = &self.services;
        let own = own_queue.as_ref()?;
        let tuple = streams.table.get(socket)?.tuple;
        let owners = own.steering.owners_of_entry(own.steering.entry_of(&tuple));
        let follows = owners.former == Some(own.index) && streams.may_move(socket);
        follows.then_some(owners.current)
    }

    /// Removes a connection for which [`Self::queue_to_follow`] returned a queue. The caller passes
    /// it to [`Self::take_over`] of that queue's host.
    pub fn move_out(&mut self, now: Instant, socket: SocketId) -> Option<MovedConnection> {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.move_out(&mut cx, socket)
    }

    /// Takes over a connection of another queue's host. The application is notified as of a new
    /// connection of the listener for its local endpoint. It is reset if there is no listener or no
    /// room, and dropped if the peer has opened another connection meanwhile.
    pub fn take_over(&mut self, now: Instant, moved: MovedConnection) {
        let (mut cx, services) = self.context_and_services(now);
        let Services { streams, accept, ending, .. } = services;
        // A host without the connection has answered a SYN with its tuple.
        if let Some(TupleOwner::HalfOpen(slot)) =
            moved.tuple().and_then(|tuple| streams.table.find(&tuple))
        {
            drop_half_open(streams, slot);
        }
        let open = *ending == ShutdownStage::Running && accept.has_room(streams);
        streams.move_in(&mut cx, moved, (!open).then_some(SocketError::Closed));
    }
}
