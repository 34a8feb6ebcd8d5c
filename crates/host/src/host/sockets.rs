//! The socket calls of the application: readiness, reading, writing, closing, and the calls of
//! IO-TCP's table 3.
//!
//! No call blocks or sends: written bytes leave at the next [`Host::poll_op`]. A socket that no
//! longer exists behaves like a closed one.

use alloc::sync::Arc;

use abi::Refusal;
use abi::teardown::LateData;
use base::Instant;
use bytes::Bytes;
use patterns::PatternSet;
use wire::{Endpoint, Tuple};

use super::{Host, Services};
use crate::accept::Accept;
use crate::api::{
    FileId, ListenConfig, ListenError, ListenerId, ListenerOption, Notice, PatternMatch, Readiness,
    SendError, SocketError, SocketId, SocketInfo, SocketOption,
};
use crate::l5p::tls::{TlsKeys, TlsServer};
use crate::stream::table::StreamRef;

impl Host {
    /// Returns the next notice. An edge-triggered application calls this until it returns `None`.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        let streams = &mut self.services.streams;
        loop {
            let notice = self.out.notices.pop_front()?;
            let (Notice::Accepted(_, id) | Notice::Socket(id)) = notice else {
                return Some(notice);
            };
            if !streams.table.contains(id) {
                continue;
            }
            let slot = &mut streams.table.slots[id.index()];
            slot.notice_queued = false;
            if let Some(listener) = slot.accepted_by.take() {
                streams.listeners.backlog_dec(listener);
            }
            return Some(notice);
        }
    }

    /// Returns whether an address is local.
    #[must_use]
    pub fn is_ours(&self, addr: core::net::IpAddr) -> bool {
        self.out.net.is_ours(addr)
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// [`ListenError`]: the port is in use, or the address cannot be listened on.
    pub fn listen(&mut self, listen: ListenConfig) -> Result<ListenerId, ListenError> {
        Accept::listen(&mut self.services.streams, &self.out, listen)
    }

    /// Stops listening on a port. Established connections stay, including those that
    /// [`Self::poll_notice`] has not reported yet; half-open ones are dropped. The identifier is
    /// not reused.
    pub fn unlisten(&mut self, listener: ListenerId) {
        let Services { accept, streams, .. } = &mut self.services;
        accept.unlisten(streams, &mut self.out, listener);
    }

    /// Listens on a port for TLS: the sockets accepted there read and write plaintext. If the
    /// device does not encrypt, the host reads the files that are opened from now on, because it
    /// encrypts them.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn listen_tls(
        &mut self,
        listen: ListenConfig,
        server: TlsServer,
    ) -> Result<ListenerId, ListenError> {
        let Services { accept, streams, .. } = &mut self.services;
        accept.listen_tls(streams, &self.out, &mut self.files, listen, server)
    }

    /// Sets an option of a listener, for connections established from now on.
    pub fn set_listener_option(&mut self, listener: ListenerId, option: ListenerOption) {
        let Services { accept, streams, .. } = &mut self.services;
        accept.set_option(streams, &mut self.out, &self.config, listener, option);
    }

    /// Returns whether a listener has set-up offload.
    ///
    /// # Errors
    /// Why not.
    pub fn setup_offload(&self, listener: ListenerId) -> Result<(), Refusal> {
        let listener = self.services.streams.listeners.get(listener.0);
        listener.map_or(Err(Refusal::Disabled), |listener| listener.setup_offload)
    }

    /// Returns the readiness of a socket.
    #[must_use]
    pub fn readiness(&self, socket: SocketId) -> Readiness {
        let config = &self.config;
        match self.services.streams.table.socket(socket) {
            None => Readiness { error: Some(SocketError::Closed), ..Readiness::default() },
            Some(StreamRef::LazyTcb(quasi)) => quasi.readiness(),
            Some(StreamRef::Tcp(conn)) => conn.readiness(config),
            Some(StreamRef::Tls(conn, session)) => session.readiness(conn.readiness(config)),
        }
    }

    /// Returns whether the peer has ended its direction as its protocol requires: with close_notify
    /// if the socket speaks TLS (RFC 8446 section 6.1), else with a FIN. Only then is a message
    /// complete that ends with the connection.
    #[must_use]
    pub fn has_ended_orderly(&self, socket: SocketId) -> bool {
        match self.services.streams.table.socket(socket) {
            Some(StreamRef::Tls(_, session)) => session.has_peer_closed(),
            _ => self.readiness(socket).peer_closed,
        }
    }

    /// Returns the remote endpoint.
    #[must_use]
    pub fn remote(&self, socket: SocketId) -> Option<Endpoint> {
        self.tuple(socket).map(|tuple| tuple.remote)
    }

    /// Returns the local endpoint.
    #[must_use]
    pub fn local(&self, socket: SocketId) -> Option<Endpoint> {
        self.tuple(socket).map(|tuple| tuple.local)
    }

    fn tuple(&self, socket: SocketId) -> Option<Tuple> {
        self.services
            .streams
            .table
            .socket(socket)
            .map(|socket| self.services.streams.table.tuple_of(&socket))
    }

    /// Returns received bytes without copying them: the first contiguous run, or an empty slice.
    #[must_use]
    pub fn peek(&self, socket: SocketId) -> &[u8] {
        self.services.streams.peek(socket)
    }

    /// Begins to inspect the bytes of a connection for patterns, from the next unread byte on. With
    /// TLS, the plaintext is inspected. The device inspects what it can, if it offers that.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection.
    pub fn start_inspection(
        &mut self,
        now: Instant,
        socket: SocketId,
        patterns: Arc<PatternSet>,
    ) -> Result<(), SendError> {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.start_inspection(&mut cx, socket, patterns, false)
    }

    /// Inspects those bytes of an inspected connection that [`Self::peek`] returns and that were
    /// not inspected yet. Calls `found` for each pattern that ends in them, in the order of the
    /// ends. To be called before [`Self::consume`]: bytes that are consumed without inspection are
    /// never inspected, and the inspection begins anew after them.
    pub fn inspect(&mut self, socket: SocketId, found: &mut dyn FnMut(PatternMatch)) {
        self.services.streams.inspect(&mut self.out, socket, found);
    }

    /// Removes bytes from the front of those that [`Self::peek`] returned.
    pub fn consume(&mut self, socket: SocketId, bytes: usize) {
        self.services.streams.consume(&mut self.out, &self.config, socket, bytes);
    }

    /// Copies received bytes to `out`. Returns their number.
    pub fn read(&mut self, socket: SocketId, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let chunk = self.peek(socket);
            let here = chunk.len().min(out.len() - done);
            if here == 0 {
                break;
            }
            out[done..done + here].copy_from_slice(&chunk[..here]);
            self.consume(socket, here);
            done += here;
        }
        done
    }

    /// Appends bytes to the send stream without copying them. Returns how many were accepted; there
    /// is room for the rest once the socket is writable again.
    ///
    /// # Errors
    /// [`SendError`]: the connection has ended or is closed for sending.
    pub fn send(
        &mut self,
        now: Instant,
        socket: SocketId,
        bytes: Bytes,
    ) -> Result<usize, SendError> {
        let (mut cx, Services { streams, .. }) = self.context_and_services(now);
        if let Some(quasi) = streams.table.lazy_tcb_mut(socket) {
            if quasi.write(&bytes, cx.config) {
                return Ok(bytes.len());
            }
            streams.promote(&mut cx, socket);
        }
        streams.check_open(socket)?;
        streams.mark_dirty(socket);
        if streams.has_session(socket) {
            return Ok(streams.session_send(&mut cx, socket, bytes));
        }
        Ok(streams.table.get_mut(socket).map_or(0, |conn| conn.write(bytes, cx.config)))
    }

    /// Returns the room for bytes of host memory in the send buffer.
    #[must_use]
    pub fn send_room(&self, socket: SocketId) -> usize {
        let config = &self.config;
        match self.services.streams.table.socket(socket) {
            None => 0,
            Some(StreamRef::LazyTcb(quasi)) => {
                config.send_bytes_max.saturating_sub(quasi.written() as usize)
            }
            Some(StreamRef::Tcp(conn) | StreamRef::Tls(conn, _)) => conn.send_room(config),
        }
    }

    /// Returns the number of bytes written and not yet acknowledged.
    #[must_use]
    pub fn send_queue(&self, socket: SocketId) -> u64 {
        match self.services.streams.table.socket(socket) {
            None => 0,
            Some(StreamRef::LazyTcb(quasi)) => quasi.written().into(),
            Some(StreamRef::Tcp(conn)) => conn.send_queue(),
            Some(StreamRef::Tls(conn, session)) => conn.send_queue() + session.queued(),
        }
    }

    /// Closes our direction after everything written has been sent.
    pub fn shutdown(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, Services { streams, .. }) = self.context_and_services(now);
        streams.promote(&mut cx, socket);
        streams.mark_dirty(socket);
        if !streams.session_shutdown(socket) {
            if let Some(conn) = streams.table.get_mut(socket) {
                conn.shutdown();
            }
        }
    }

    /// `SHUT_RD`: closes the receive direction. Unread and later data is acknowledged and
    /// discarded, and the socket behaves as if the peer had closed its direction. Once our
    /// direction is closed as well, more data is answered with a reset (RFC 1122 section 4.2.2.13).
    pub fn shutdown_read(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, Services { streams, .. }) = self.context_and_services(now);
        streams.promote(&mut cx, socket);
        if let Some(conn) = streams.table.get_mut(socket) {
            conn.rcv.read_shut = true;
            conn.modes.notify_app = true;
            streams.discard_unread(cx.out, cx.config, socket);
            streams.mark_dirty(socket);
        }
    }

    /// Closes a socket. Written bytes are still delivered. Unread bytes turn the close into a reset
    /// (RFC 2525 section 2.17), and later data from the peer is answered with one.
    /// [`Host::close_lingering`] discards both instead.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.close(&mut cx, socket, LateData::Reset);
    }

    /// Closes a socket as [`Host::close`] does, but discards unread bytes and up to `bytes_max`
    /// bytes that the peer sends from now on; more is answered with a reset. For servers that close
    /// first, whose response a reset could destroy.
    pub fn close_lingering(&mut self, now: Instant, socket: SocketId, bytes_max: u32) {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.close(&mut cx, socket, LateData::Discard { bytes_max });
    }

    /// Resets the connection and closes the socket.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.abort(&mut cx, socket);
    }

    /// Returns whether a socket reads and writes the plaintext of TLS.
    #[must_use]
    pub fn speaks_tls(&self, socket: SocketId) -> bool {
        self.services.streams.has_session(socket)
    }

    /// Starts TLS on a connection with the keys of a handshake that took place elsewhere.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection, or it already uses TLS.
    pub fn attach_tls(
        &mut self,
        now: Instant,
        socket: SocketId,
        keys: &TlsKeys,
    ) -> Result<(), SendError> {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.attach_tls(&mut cx, socket, keys)
    }

    /// Sets an option of a connection.
    pub fn set_option(&mut self, now: Instant, socket: SocketId, option: SocketOption) {
        let (mut cx, Services { streams, .. }) = self.context_and_services(now);
        if let (SocketOption::NoDelay(on), Some(quasi)) =
            (option, streams.table.lazy_tcb_mut(socket))
        {
            quasi.no_delay = on;
            return;
        }
        streams.promote(&mut cx, socket);
        streams.with(&mut cx, socket, |conn, cx| conn.set_option(option, cx.now));
    }

    /// Returns the state of a connection as shown by `outboard ss`.
    #[must_use]
    pub fn info(&self, socket: SocketId) -> Option<SocketInfo> {
        let (conn, tls) = match self.services.streams.table.socket(socket)? {
            StreamRef::LazyTcb(quasi) => {
                let tuple = quasi.tcb.tuple(&self.services.streams.table.addrs);
                return Some(quasi.info(&tuple, self.file_offload(), &self.config));
            }
            StreamRef::Tcp(conn) => (conn, None),
            StreamRef::Tls(conn, session) => (conn, session.info(conn)),
        };
        let file = conn.snd.spans.files().next();
        let offload = file.map_or_else(|| self.file_offload(), |f| self.files.offload_of(f));
        let nvme = self.services.streams.nvme_info(socket);
        let inspection = self.services.streams.inspection_info(socket);
        Some(SocketInfo { tls, nvme, inspection, ..conn.info(&self.config, offload) })
    }

    /// Returns all stream sockets.
    pub fn sockets(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.services.streams.ids()
    }

    /// Appends `len` bytes of a file from `offset` to the send stream. Only metadata is queued, so
    /// any length is accepted.
    ///
    /// # Errors
    /// [`SendError`]: the connection has ended or is closed for sending, or the file has no such
    /// range.
    pub fn offload_write(
        &mut self,
        now: Instant,
        socket: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let (mut cx, Services { streams, .. }) = self.context_and_services(now);
        streams.promote(&mut cx, socket);
        streams.check_open(socket)?;
        streams.mark_dirty(socket);
        if streams.has_session(socket) {
            return streams.session_send_file(&mut cx, socket, file, offset, len);
        }
        let source = cx.files.source(file, offset, len).ok_or(SendError::BadExtent)?;
        if let Some(conn) = streams.table.get_mut(socket) {
            conn.write_file(source, len);
        }
        Ok(())
    }
}
