//! Turns of TLS sessions: what a session does after each event and each call that may have given it
//! something to do.
//!
//! Called by [`Streams`] and by the application through [`crate::Host`]. All work on a session goes
//! through the two functions here that borrow one with its connection, which then know whether the
//! session waits for a turn.

use abi::FlowId;
use abi::l5o::{L5oId, L5oRefused, ResyncRequest};
use bytes::Bytes;

use super::Streams;
use crate::api::{FileId, SendError, SocketError, SocketId};
use crate::l5p::Connection;
use crate::l5p::tls::{Session, TlsKeys};
use crate::tcp::conn::Cx;

impl Streams {
    /// Lets the session of a connection do what it can.
    pub(crate) fn session_turn(&mut self, cx: &mut Cx<'_>, id: SocketId) {
        if !self.table.get(id).is_some_and(Connection::may_be_read) {
            return;
        }
        if self.detach_cleartext(cx, id) {
            return;
        }
        let wrote = self.with_session(cx, id, |session, conn, cx| {
            let before = (conn.snd.spans.end(), conn.snd.fin);
            session.turn(conn, cx);
            (conn.snd.spans.end(), conn.snd.fin) != before
        });
        if wrote == Some(true) {
            self.touch(id);
        }
    }

    /// Takes the session off a connection whose client does not speak TLS, if the listener wants
    /// such. Returns whether it did.
    fn detach_cleartext(&mut self, cx: &mut Cx<'_>, id: SocketId) -> bool {
        let Some((session, conn)) = self.table.with_session(id) else { return false };
        if !session.is_cleartext(&conn.rcv) {
            return false;
        }
        (conn.modes.session_waits, conn.modes.notify) = (false, true);
        self.table.slots[id.index()].detach_session();
        cx.out.counters.tls_cleartext += 1;
        true
    }

    /// Works on a session and its connection. Returns none if there is no session.
    pub(super) fn with_session<R>(
        &mut self,
        cx: &mut Cx<'_>,
        id: SocketId,
        work: impl FnOnce(&mut Session, &mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let (session, conn) = self.table.with_session(id)?;
        let result = work(session, conn, cx);
        conn.modes.session_waits = session.waits();
        Some(result)
    }

    /// Returns whether the socket is one of a session.
    pub(crate) fn has_session(&self, id: SocketId) -> bool {
        self.table.slot(id).is_some_and(|slot| slot.stream.session().is_some())
    }

    /// Has the session write. The records behind what was read are taken before: a KeyUpdate behind
    /// a request is answered before the response (RFC 8446 section 4.6.3).
    fn session_write<R>(
        &mut self,
        cx: &mut Cx<'_>,
        id: SocketId,
        write: impl FnOnce(&mut Session, &mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let (session, conn) = self.table.with_session(id)?;
        if conn.rcv.ready_bytes() > 0 && session.peek(&conn.rcv).is_empty() {
            self.session_turn(cx, id);
        }
        self.with_session(cx, id, write)
    }

    /// Appends bytes to what a session sends. Returns how many were taken.
    pub(crate) fn session_send(&mut self, cx: &mut Cx<'_>, id: SocketId, bytes: Bytes) -> usize {
        let sent = self.session_write(cx, id, |session, conn, cx| {
            session.send(conn, &mut cx.out.counters, cx.config, bytes)
        });
        sent.unwrap_or(0)
    }

    /// Appends a part of a file to what a session sends.
    ///
    /// # Errors
    /// [`SendError::BadExtent`]: no such range.
    pub(crate) fn session_send_file(
        &mut self,
        cx: &mut Cx<'_>,
        id: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let source = cx.files.source(file, offset, len).ok_or(SendError::BadExtent)?;
        self.session_write(cx, id, |session, conn, cx| {
            session.send_file(conn, &mut cx.out.counters, source, len);
        });
        Ok(())
    }

    /// Has the session say that nothing follows. Returns whether that is still to be sent: no if
    /// there is no session.
    pub(crate) fn session_shutdown(&mut self, id: SocketId) -> bool {
        let Some((session, conn)) = self.table.with_session(id) else { return false };
        let follows = session.shutdown();
        conn.modes.session_waits = session.waits();
        follows
    }

    /// Discards what a session received and will not be read. Returns false if there is no session.
    pub(super) fn session_discard(&mut self, cx: &mut Cx<'_>, id: SocketId) -> bool {
        self.with_session(cx, id, Session::discard).is_some()
    }

    /// The device asks where a record begins.
    pub(crate) fn session_resync(
        &mut self,
        cx: &mut Cx<'_>,
        flow: FlowId,
        context: L5oId,
        request: ResyncRequest,
    ) {
        let id = SocketId::of_flow(flow);
        let asked = self.with_session(cx, id, |session, conn, cx| {
            session.handle_resync(conn, cx, context, request);
        });
        if asked.is_none() {
            cx.out.counters.events_late += 1;
        }
    }

    /// The device refused a context.
    pub(crate) fn session_refused(&mut self, cx: &mut Cx<'_>, refused: &L5oRefused) {
        let id = SocketId::of_flow(refused.flow);
        let known = self.with_session(cx, id, |session, conn, cx| {
            session.handle_refused(conn, cx, refused.context, refused.why);
        });
        let digests = |conn: &mut Connection, cx: &mut Cx<'_>| {
            conn.lose_context(cx, Some((refused.context, refused.why))).digests
        };
        if known.is_none() && self.with(cx, id, digests) != Some(true) {
            cx.out.counters.events_late += 1;
        }
        self.touch(id);
    }

    /// The device lost everything.
    pub(super) fn session_device_reset(&mut self, cx: &mut Cx<'_>, id: SocketId) {
        self.with_session(cx, id, |session, conn, cx| session.handle_device_reset(conn, cx));
    }

    /// Speaks TLS on a connection whose keys others have agreed on, from here on.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection, or it speaks TLS already.
    pub(crate) fn attach_tls(
        &mut self,
        cx: &mut Cx<'_>,
        socket: SocketId,
        keys: &TlsKeys,
    ) -> Result<(), SendError> {
        let gone = SendError::NotConnected(SocketError::Closed);
        self.make_whole(cx, socket);
        let slot = self.table.slot_mut(socket).ok_or(gone)?;
        let Some((conn, None, _)) = slot.layers_mut() else { return Err(gone) };
        let session = Session::attached(conn, cx, keys);
        conn.modes.session_waits = true;
        slot.attach(session);
        self.touch(socket);
        Ok(())
    }

    /// The connection is over: its session needs no files any more, and the device no context.
    pub(super) fn session_ended(&mut self, cx: &mut Cx<'_>, id: SocketId) {
        self.nvme_ended(cx, id);
        if let Some((session, _)) = self.table.with_session(id) {
            session.release(cx.out, cx.files);
        }
    }
}

impl Connection {
    /// Returns whether something came that was not read, or its session has something to do.
    pub(super) fn may_be_read(&self) -> bool {
        self.modes.session_waits || self.rcv.ready_bytes() > 0
    }
}
