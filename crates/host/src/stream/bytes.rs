//! Reading and discarding received bytes, and whether a socket can be written.
//!
//! Called by the application through [`crate::Host`]. Each call dispatches once on the kind of the
//! socket: quasi-TCB, TCP or TLS.

use super::Streams;
use super::table::{StreamMut, StreamRef};
use crate::api::{SendError, SocketError, SocketId};
use crate::config::TcpConfig;
use crate::net::outbox::Outbox;
use crate::tcp::conn::TcpEnv;

impl Streams {
    /// Returns the first contiguous run of received bytes; empty if there are none.
    pub(crate) fn peek(&self, socket: SocketId) -> &[u8] {
        match self.table.socket(socket) {
            None => &[],
            Some(StreamRef::LazyTcb(quasi)) => quasi.peek(),
            Some(StreamRef::Tcp(conn)) => conn.rcv.peek(),
            Some(StreamRef::Tls(conn, session)) => session.peek(&conn.rcv),
        }
    }

    /// Removes bytes from the front of those that [`Self::peek`] returned.
    pub(crate) fn consume(
        &mut self,
        out: &mut Outbox,
        config: &TcpConfig,
        socket: SocketId,
        bytes: usize,
    ) {
        if !self.inspectors.is_empty() && self.table.contains(socket) {
            self.inspectors.consume(socket, bytes);
        }
        match self.table.socket_mut(socket) {
            None => return,
            Some(StreamMut::LazyTcb(quasi)) => {
                return out.recycle.extend(quasi.consume(bytes));
            }
            Some(StreamMut::Tcp(conn)) => out.recycle.extend(conn.rcv.consume(bytes)),
            Some(StreamMut::Tls(conn, session)) => {
                // There is room for more records, which are decrypted at the next event or in
                // `poll_op`.
                session.consume(conn, out, config, bytes);
                conn.modes.session_has_work = session.has_work();
            }
        }
        // The window may have opened.
        self.mark_dirty(socket);
    }

    /// Returns an error unless a connection can be written.
    pub(crate) fn check_open(&self, socket: SocketId) -> Result<(), SendError> {
        let (conn, shut) = match self.table.socket(socket) {
            Some(StreamRef::Tcp(conn)) => (conn, false),
            Some(StreamRef::Tls(conn, session)) => (conn, session.is_shut()),
            Some(StreamRef::LazyTcb(_)) | None => {
                return Err(SendError::NotConnected(SocketError::Closed));
            }
        };
        if conn.state.may_write() && !conn.snd.fin && !shut {
            Ok(())
        } else {
            Err(SendError::NotConnected(conn.error.unwrap_or(SocketError::Closed)))
        }
    }

    /// Discards received bytes that no application will read.
    pub(super) fn discard_unwanted(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(conn) = self.table.get(id) else { return };
        let (read_shut, held) = (conn.rcv.read_shut, conn.modes.held_by_app);
        if read_shut {
            self.discard_unread(cx.out, cx.config, id);
        }
        if !held {
            self.discard_late_data(cx, id);
        }
    }

    /// Discards all readable bytes.
    pub(crate) fn discard_unread(
        &mut self,
        out: &mut Outbox,
        config: &TcpConfig,
        socket: SocketId,
    ) {
        loop {
            let bytes = self.peek(socket).len();
            if bytes == 0 {
                break;
            }
            out.counters.tcp_discarded_bytes += bytes as u64;
            self.consume(out, config, socket, bytes);
        }
    }
}
