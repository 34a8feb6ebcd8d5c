//! Work of TLS sessions after events and calls that may have given them something to do.
//!
//! Called by [`Streams`] and by the application through [`crate::Host`]. Work on a session goes
//! through [`Streams::with_session`] or updates `session_has_work` itself, so that the connection
//! knows whether its session has work.

use abi::FlowId;
use abi::l5o::{L5oId, L5oRefused, ResyncRequest};
use bytes::Bytes;

use super::Streams;
use crate::api::{FileId, SendError, SocketError, SocketId};
use crate::l5p::L5pConnection;
use crate::l5p::tls::{HostTlsSession, TlsKeys};
use crate::tcp::conn::TcpEnv;

impl Streams {
    /// Lets the session of a connection do all work that it can.
    pub(crate) fn run_session(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        if !self.table.get(id).is_some_and(L5pConnection::may_be_read) {
            return;
        }
        let wrote = self.with_session(cx, id, |session, conn, cx| {
            if session.is_cleartext(&conn.rcv) {
                return None;
            }
            let before = (conn.snd.spans.end(), conn.snd.fin);
            session.make_progress(conn, cx);
            Some((conn.snd.spans.end(), conn.snd.fin) != before)
        });
        match wrote {
            Some(None) => self.detach_cleartext(cx, id),
            Some(Some(true)) => self.mark_dirty(id),
            Some(Some(false)) | None => {}
        }
    }

    /// Removes the session from a connection whose client does not speak TLS; its listener accepts
    /// cleartext.
    fn detach_cleartext(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        if let Some(conn) = self.table.get_mut(id) {
            (conn.modes.session_has_work, conn.modes.notify_app) = (false, true);
        }
        self.table.slots[id.index()].detach_session();
        cx.out.counters.tls_cleartext += 1;
    }

    /// Calls `f` with a session and its connection. Returns `None` if there is no session.
    pub(super) fn with_session<R>(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        work: impl FnOnce(&mut HostTlsSession, &mut L5pConnection, &mut TcpEnv<'_>) -> R,
    ) -> Option<R> {
        let (session, conn) = self.table.with_session(id)?;
        let result = work(session, conn, cx);
        conn.modes.session_has_work = session.has_work();
        Some(result)
    }

    /// Returns whether the socket has a TLS session.
    pub(crate) fn has_session(&self, id: SocketId) -> bool {
        self.table.slot(id).is_some_and(|slot| slot.stream.session().is_some())
    }

    /// Lets the session write. Received records are processed first: a KeyUpdate after a request
    /// must be answered before the response (RFC 8446 section 4.6.3).
    fn session_write<R>(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        write: impl FnOnce(&mut HostTlsSession, &mut L5pConnection, &mut TcpEnv<'_>) -> R,
    ) -> Option<R> {
        let (session, conn) = self.table.with_session(id)?;
        if conn.rcv.ready_bytes() > 0 && session.peek(&conn.rcv).is_empty() {
            self.run_session(cx, id);
        }
        self.with_session(cx, id, |session, conn, cx| {
            // A session that only sends has no other occasion.
            session.request_again(conn, cx);
            write(session, conn, cx)
        })
    }

    /// Appends bytes to the output of a session. Returns how many were accepted.
    pub(crate) fn session_send(
        &mut self,
        cx: &mut TcpEnv<'_>,
        id: SocketId,
        bytes: Bytes,
    ) -> usize {
        let sent = self.session_write(cx, id, |session, conn, cx| {
            session.send(conn, &mut cx.out.counters, cx.config, bytes)
        });
        sent.unwrap_or(0)
    }

    /// Appends a range of a file to the output of a session.
    ///
    /// # Errors
    /// [`SendError::BadExtent`]: the file has no such range.
    pub(crate) fn session_send_file(
        &mut self,
        cx: &mut TcpEnv<'_>,
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

    /// Makes the session send close_notify. Returns whether it is still to be sent; false if there
    /// is no session.
    pub(crate) fn session_shutdown(&mut self, id: SocketId) -> bool {
        let Some((session, conn)) = self.table.with_session(id) else { return false };
        let follows = session.shutdown();
        conn.modes.session_has_work = session.has_work();
        follows
    }

    /// Discards bytes received by a session that no application will read. Returns false if there
    /// is no session.
    pub(super) fn session_discard(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) -> bool {
        self.with_session(cx, id, HostTlsSession::discard).is_some()
    }

    /// Handles the device's question whether a record begins at a position.
    pub(crate) fn session_resync(
        &mut self,
        cx: &mut TcpEnv<'_>,
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

    /// Handles the refusal of a context.
    pub(crate) fn session_refused(&mut self, cx: &mut TcpEnv<'_>, refused: &L5oRefused) {
        let id = SocketId::of_flow(refused.flow);
        let known = self.with_session(cx, id, |session, conn, cx| {
            session.handle_refused(conn, cx, refused.context, refused.reason);
        });
        let digests = |conn: &mut L5pConnection, cx: &mut TcpEnv<'_>| {
            conn.drop_contexts(cx, Some((refused.context, refused.reason))).digests
        };
        if known.is_none() && self.with(cx, id, digests) != Some(true) {
            cx.out.counters.events_late += 1;
        }
        self.mark_dirty(id);
    }

    /// Handles a reset of the device.
    pub(super) fn session_device_reset(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        self.with_session(cx, id, |session, conn, cx| session.handle_device_reset(conn, cx));
    }

    /// Starts TLS on a connection with the keys of a handshake that took place elsewhere.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection, or it already uses TLS.
    pub(crate) fn attach_tls(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        keys: &TlsKeys,
    ) -> Result<(), SendError> {
        let gone = SendError::NotConnected(SocketError::Closed);
        self.promote(cx, socket);
        let slot = self.table.slot_mut(socket).ok_or(gone)?;
        let Some((conn, None, _)) = slot.layers_mut() else { return Err(gone) };
        let session = HostTlsSession::attached(conn, cx, keys);
        conn.modes.session_has_work = true;
        slot.attach(session);
        self.mark_dirty(socket);
        Ok(())
    }

    /// Releases the files and the device's contexts of the session of a connection that has ended.
    pub(super) fn session_ended(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        self.nvme_ended(cx, id);
        self.inspection_ended(cx, id);
        if let Some((session, _)) = self.table.with_session(id) {
            session.release(cx.out, cx.files);
        }
    }
}

impl L5pConnection {
    /// Returns whether there are unread bytes, or the session has work.
    pub(super) fn may_be_read(&self) -> bool {
        self.modes.session_has_work || self.rcv.ready_bytes() > 0
    }
}
