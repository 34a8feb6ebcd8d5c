//! Protocols above TCP that the host speaks itself (the papers' L5Ps), as sessions between a
//! connection and the application's socket.
//!
//! [`crate::Host`] gives a session its turn whenever something happened to its connection; the
//! socket calls go to the session instead of to the connection. TCP below knows nothing of it.

pub(crate) mod tls;

use base::Instant;
use bytes::Bytes;

use crate::api::{FileId, Readiness, SendError, SocketId};
use crate::host::Host;
use crate::tcp::conn::{Connection, Cx};
use tls::Session;

impl Host {
    /// Lets the session of a connection do what it can: after every event and every call that may
    /// have given it something to do.
    pub(crate) fn session_turn(&mut self, now: Instant, id: SocketId) {
        let wrote = self.with_session(now, id, |session, conn, cx| {
            let before = (conn.snd.spans.end(), conn.snd.fin);
            session.turn(conn, cx);
            (conn.snd.spans.end(), conn.snd.fin) != before
        });
        if wrote == Some(true) {
            self.touch(id);
        }
    }

    /// Works on a session and its connection; none where there is no session.
    fn with_session<R>(
        &mut self,
        now: Instant,
        id: SocketId,
        work: impl FnOnce(&mut Session, &mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        self.table.get(id)?;
        let slot = self.table.slots.get_mut(id.index())?;
        let (conn, session) = (slot.conn.as_deref_mut()?, slot.session.as_deref_mut()?);
        let mut cx =
            Cx { now, config: &self.config.tcp, out: &mut self.out, files: &mut self.files };
        Some(work(session, conn, &mut cx))
    }

    fn session(&self, id: SocketId) -> Option<&Session> {
        self.table.get(id)?;
        self.table.slots.get(id.index())?.session.as_deref()
    }

    fn session_mut(&mut self, id: SocketId) -> Option<&mut Session> {
        self.table.get(id)?;
        self.table.slots.get_mut(id.index())?.session.as_deref_mut()
    }

    /// Whether the socket is one of a session.
    pub(crate) fn has_session(&self, id: SocketId) -> bool {
        self.session(id).is_some()
    }

    /// Whether a session took its last byte, although its end may still be to be sent.
    pub(crate) fn session_is_shut(&self, id: SocketId) -> bool {
        self.session(id).is_some_and(Session::is_shut)
    }

    pub(crate) fn session_readiness(&self, id: SocketId, below: Readiness) -> Readiness {
        self.session(id).map_or(below, |session| session.readiness(below))
    }

    pub(crate) fn session_peek(&self, id: SocketId) -> Option<&[u8]> {
        self.session(id).map(Session::peek)
    }

    pub(crate) fn session_queue(&self, id: SocketId) -> u64 {
        self.session(id).map_or(0, Session::queued)
    }

    pub(crate) fn session_consume(&mut self, id: SocketId, bytes: usize) {
        // Room for more records: they are opened at the next event, or by the turn in `poll_op`.
        if let Some(session) = self.session_mut(id) {
            session.consume(bytes);
        }
    }

    pub(crate) fn session_send(&mut self, id: SocketId, bytes: Bytes) -> usize {
        let room = self.table.get(id).map_or(0, |conn| conn.send_room(&self.config.tcp));
        self.session_mut(id).map_or(0, |session| session.send(bytes, room))
    }

    /// # Errors
    /// [`SendError::BadExtent`]: no such range, or a file that the device has open.
    pub(crate) fn session_send_file(
        &mut self,
        id: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        if !self.files.source_on_host(file, offset, len) {
            return Err(SendError::BadExtent);
        }
        if let Some(session) = self.session_mut(id) {
            session.send_file(file, offset, len);
        }
        Ok(())
    }

    /// Has the session say that nothing follows. Says whether that is still to be sent; no where
    /// there is no session.
    pub(crate) fn session_shutdown(&mut self, id: SocketId) -> bool {
        self.session_mut(id).is_some_and(Session::shutdown)
    }

    /// The host's disk has read what a session waits for; gives the bytes back where there is none.
    pub(crate) fn session_filled(
        &mut self,
        now: Instant,
        id: SocketId,
        bytes: Bytes,
    ) -> Option<Bytes> {
        if !self.has_session(id) {
            return Some(bytes);
        }
        self.with_session(now, id, |session, conn, cx| session.filled(conn, cx, bytes));
        None
    }

    /// The connection is over: its session needs no files any more.
    pub(crate) fn session_ended(&mut self, id: SocketId) {
        let Some(slot) = self.table.slots.get_mut(id.index()) else { return };
        if let Some(session) = slot.session.as_deref_mut() {
            session.release(&mut self.out, &mut self.files);
        }
    }
}
