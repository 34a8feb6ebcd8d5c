//! Moves of connections to the host of another queue.
//!
//! Called by [`crate::Host`] for connections whose steering entry was moved ([`abi::steering`]). A
//! connection moves only while nothing of it is in flight or on its device: everything that it sent
//! is acknowledged, and nothing has arrived beyond what the application can read. So its state is
//! that of the TCB, of the TLS session and of a few readable bytes, which need no buffer of the
//! device once they are copied. The contexts of the device are destroyed, and the new host requests
//! others from its own device.
//!
//! Segments that arrive during the move are not lost: a host without the connection hands them over
//! to the other queue.

use wire::Tuple;

use super::Streams;
use super::table::{SplicePhase, StreamSocket, TupleOwner};
use crate::api::{SocketError, SocketId};
use crate::l5p::L5pConnection;
use crate::tcp::conn::TcpEnv;
use crate::tcp::state::TcpState;

/// A connection on its way from one host of a stack to another.
#[derive(Debug)]
pub struct MovedConnection {
    stream: StreamSocket,
}

impl MovedConnection {
    /// Returns the connection's tuple.
    pub(crate) fn tuple(&self) -> Option<Tuple> {
        self.stream.conn().map(|conn| conn.tuple)
    }
}

impl Streams {
    /// Returns whether a connection can move now, if its application does not object.
    pub(crate) fn may_move(&self, id: SocketId) -> bool {
        let Some(slot) = self.table.slot(id) else { return false };
        let Some(conn) = slot.stream.conn() else { return false };
        let session = slot.stream.session();
        conn.may_move()
            && session.is_none_or(|session| session.may_move(&conn.rcv))
            && slot.nvme.is_none()
            && slot.splice_phase == SplicePhase::No
            && !self.inspectors.has(id)
            && self.listeners.find(&conn.tuple).is_some()
    }

    /// Removes a connection for which [`Self::may_move`] returned true.
    pub(crate) fn move_out(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
    ) -> Option<MovedConnection> {
        self.with_session(cx, id, |session, conn, cx| session.leave_device(conn, cx.out));
        let conn = self.table.get_mut(id)?;
        conn.leave_device(cx);
        let tuple = conn.tuple;
        self.table.unroute(&tuple, TupleOwner::Connection(id.index));
        let stream = core::mem::take(&mut self.table.slots[id.index()].stream);
        self.empty_slot(id);
        cx.out.counters.tcp_moved_out += 1;
        Some(MovedConnection { stream })
    }

    /// Inserts a connection that the host of another queue removed; it waits to be accepted. It is
    /// reset with the error `refused`, if there is one, or if no listener accepts it.
    pub(crate) fn move_in(
        &mut self,
        cx: &mut TcpEnv<'_>,
        mut moved: MovedConnection,
        refused: Option<SocketError>,
    ) {
        let Some(conn) = moved.stream.conn_mut() else { return };
        let tuple = conn.tuple;
        let lost = (!cx.out.net.is_ours(tuple.local.addr)).then_some(SocketError::AddressLost);
        let listener = self.listeners.find(&tuple);
        if self.table.find(&tuple).is_some() {
            // The peer has given the moved connection up: it has opened another one since.
            cx.out.counters.tcp_moved_refused += 1;
            return;
        }
        let (None, None, Some(listener)) = (refused, lost, listener) else {
            let error = refused.or(lost).unwrap_or(SocketError::Closed);
            cx.out.counters.tcp_moved_refused += 1;
            conn.abort(cx, error);
            return;
        };
        let id = self.table.next_id();
        conn.flow = id.into();
        conn.modes.notify_app = true;
        self.table.insert_moved(id, moved.stream);
        self.table.slots[id.index()].accepted_by = Some(listener);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.accept_queue_len += 1;
        }
        cx.out.counters.tcp_moved_in += 1;
        self.with_session(cx, id, |session, conn, cx| session.install(conn, cx));
        let mtu = cx.out.net.mtu;
        self.with(cx, id, |conn, cx| conn.limit_mtu(cx, mtu));
    }
}

impl L5pConnection {
    /// Returns whether nothing of the connection is in flight, on the device or about to end.
    fn may_move(&self) -> bool {
        let snd = &self.snd;
        let acknowledged = snd.una == self.send_end() && snd.flight.is_empty();
        let on_device = snd.carried_ack.is_some() || snd.host_reads_file || self.awaits_device();
        self.state == TcpState::Established
            && self.modes.held_by_app
            && acknowledged
            && !on_device
            && snd.transforms.pdus.is_none()
            && !self.rcv.read_shut
            && !self.rcv.has_holes()
    }
}
