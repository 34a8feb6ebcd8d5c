//! Protocols above TCP that the host speaks itself (the papers' L5Ps).
//!
//! TLS is a session between a connection and the application's socket: [`crate::Host`] gives it its
//! turn whenever something happened to its connection; the socket calls go to the session instead
//! of to the connection. NVMe/TCP is the application's, which polls a [`nvme_tcp::Transport`] of
//! its own over the socket, plain or of TLS. TCP below knows neither: its send stream asks
//! [`transforms`] for the bytes of records and PDUs, and it carries the metadata of received
//! segments unseen.

pub(crate) mod nvme_tcp;
pub(crate) mod tls;
pub(crate) mod transforms;

use abi::FlowId;
use abi::l5o::{L5oId, L5oRefused, ResyncRequest};
use base::Instant;
use bytes::Bytes;

use crate::api::{FileId, SendError, SocketError, SocketId};
use crate::config::TcpConfig;
use crate::counters::HostCounters;
use crate::host::Host;
use crate::tcp::conn::Cx;
use tls::{Session, TlsKeys};
use transforms::Transforms;

/// A connection with the transforms of the protocols here.
pub(crate) type Connection = crate::tcp::conn::Connection<Transforms>;

impl Host {
    /// Lets the session of a connection do what it can: after every event and every call that may
    /// have given it something to do.
    pub(crate) fn session_turn(&mut self, now: Instant, id: SocketId) {
        let idle = |conn: &Connection| !conn.modes.session_waits && conn.rcv.ready_bytes() == 0;
        if self.table.get(id).is_none_or(idle) {
            return;
        }
        if self.hand_over_cleartext(id) {
            return;
        }
        let wrote = self.with_session(now, id, |session, conn, cx| {
            let before = (conn.snd.spans.end(), conn.snd.fin);
            session.turn(conn, cx);
            (conn.snd.spans.end(), conn.snd.fin) != before
        });
        if wrote == Some(true) {
            self.touch(id);
        }
    }

    /// Takes the session off a connection whose client does not speak TLS, if the listener wants
    /// such; says whether it did.
    fn hand_over_cleartext(&mut self, id: SocketId) -> bool {
        let Some((session, conn)) = self.table.with_session(id) else { return false };
        if !session.is_cleartext(&conn.rcv) {
            return false;
        }
        (conn.modes.session_waits, conn.modes.notify) = (false, true);
        self.table.slots[id.index()].detach_session();
        self.out.counters.tls_cleartext += 1;
        true
    }

    /// Works on a session and its connection; none where there is no session.
    fn with_session<R>(
        &mut self,
        now: Instant,
        id: SocketId,
        work: impl FnOnce(&mut Session, &mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let (session, conn) = self.table.with_session(id)?;
        let mut cx =
            Cx { now, config: &self.config.tcp, out: &mut self.out, files: &mut self.files };
        let result = work(session, conn, &mut cx);
        conn.modes.session_waits = session.waits();
        Some(result)
    }

    fn session(&self, id: SocketId) -> Option<&Session> {
        self.table.slot(id)?.stream.session()
    }

    /// Whether the socket is one of a session.
    pub(crate) fn has_session(&self, id: SocketId) -> bool {
        self.session(id).is_some()
    }

    /// Returns whether what is read and written at a socket is the plaintext of TLS.
    #[must_use]
    pub fn speaks_tls(&self, socket: SocketId) -> bool {
        self.has_session(socket)
    }

    /// Has the session write. The records behind what was read are taken before: a KeyUpdate behind
    /// a request is answered before the response (RFC 8446 section 4.6.3).
    fn session_write<R>(
        &mut self,
        id: SocketId,
        write: impl FnOnce(&mut Session, &mut Connection, &mut HostCounters, &TcpConfig) -> R,
    ) -> Option<R> {
        let (mut session, mut conn) = self.table.with_session(id)?;
        if conn.rcv.ready_bytes() > 0 && session.peek(&conn.rcv).is_empty() {
            self.session_turn(self.latest, id);
            (session, conn) = self.table.with_session(id)?;
        }
        let result = write(session, conn, &mut self.out.counters, &self.config.tcp);
        conn.modes.session_waits = session.waits();
        Some(result)
    }

    pub(crate) fn session_send(&mut self, id: SocketId, bytes: Bytes) -> usize {
        let sent = self.session_write(id, |session, conn, counters, config| {
            session.send(conn, counters, config, bytes)
        });
        sent.unwrap_or(0)
    }

    /// # Errors
    /// [`SendError::BadExtent`]: no such range.
    pub(crate) fn session_send_file(
        &mut self,
        id: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let source = self.files.source(file, offset, len).ok_or(SendError::BadExtent)?;
        self.session_write(id, |session, conn, counters, _| {
            session.send_file(conn, counters, source, len);
        });
        Ok(())
    }

    /// Has the session say that nothing follows. Says whether that is still to be sent; no where
    /// there is no session.
    pub(crate) fn session_shutdown(&mut self, id: SocketId) -> bool {
        let Some((session, conn)) = self.table.with_session(id) else { return false };
        let follows = session.shutdown();
        conn.modes.session_waits = session.waits();
        follows
    }

    /// Discards what a session received and will not be read. Returns false if there is no session.
    pub(crate) fn session_discard(&mut self, now: Instant, id: SocketId) -> bool {
        self.with_session(now, id, Session::discard).is_some()
    }

    /// The device asks where a record begins.
    pub(crate) fn session_resync(
        &mut self,
        now: Instant,
        flow: FlowId,
        context: L5oId,
        request: ResyncRequest,
    ) {
        let id = SocketId::of_flow(flow);
        let asked = self.with_session(now, id, |session, conn, cx| {
            session.handle_resync(conn, cx, context, request);
        });
        if asked.is_none() {
            self.out.counters.events_late += 1;
        }
    }

    /// The device refused a context.
    pub(crate) fn session_refused(&mut self, now: Instant, refused: &L5oRefused) {
        let id = SocketId::of_flow(refused.flow);
        let known = self.with_session(now, id, |session, conn, cx| {
            session.handle_refused(conn, cx, refused.context, refused.why);
        });
        let digests = |conn: &mut Connection, cx: &mut Cx<'_>| {
            conn.lose_context(cx, Some((refused.context, refused.why))).digests
        };
        if known.is_none() && self.with(now, id, digests) != Some(true) {
            self.out.counters.events_late += 1;
        }
        self.touch(id);
    }

    /// The device lost everything.
    pub(crate) fn session_device_reset(&mut self, now: Instant, id: SocketId) {
        self.with_session(now, id, |session, conn, cx| session.handle_device_reset(conn, cx));
    }

    /// Speaks TLS on a connection whose keys others have agreed on, from here on.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection, or it speaks TLS already.
    pub fn attach_tls(
        &mut self,
        now: Instant,
        socket: SocketId,
        keys: &TlsKeys,
    ) -> Result<(), SendError> {
        let gone = SendError::NotConnected(SocketError::Closed);
        self.make_whole(now, socket);
        let slot = self.table.slot_mut(socket).ok_or(gone)?;
        let Some((conn, None, _)) = slot.layers_mut() else { return Err(gone) };
        let mut cx =
            Cx { now, config: &self.config.tcp, out: &mut self.out, files: &mut self.files };
        let session = Session::attached(conn, &mut cx, keys);
        conn.modes.session_waits = true;
        slot.attach(session);
        self.touch(socket);
        Ok(())
    }

    /// The connection is over: its session needs no files any more.
    pub(crate) fn session_ended(&mut self, id: SocketId) {
        self.nvme_ended(id);
        if let Some((session, _)) = self.table.with_session(id) {
            session.release(&mut self.out, &mut self.files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection has to fit a kibibyte with its slot, its route and its flow-table entry.
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<Connection>();
        assert!(bytes <= 792, "{bytes} bytes");
    }
}
