//! Sockets, for the application: readiness, reading, writing, closing, and the calls of IO-TCP's
//! table 3.
//!
//! No call blocks, none sends: what is written leaves at the next [`Host::poll_op`]. A socket that
//! does not exist any more answers like a closed one.

use abi::Refusal;
use abi::teardown::LateData;
use base::Instant;
use bytes::Bytes;
use wire::{Endpoint, Tuple};

use super::{Host, Services};
use crate::accept::Accept;
use crate::api::{
    FileId, Listen, ListenError, ListenerId, ListenerOption, Notice, Readiness, SendError,
    SocketError, SocketId, SocketInfo, SocketOption,
};
use crate::l5p::tls::{TlsKeys, TlsServer};
use crate::stream::table::StreamRef;

impl Host {
    /// The next thing that happened. An application that waits for nothing asks until there is
    /// none.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        let streams = &mut self.services.streams;
        loop {
            let notice = self.out.notices.pop_front()?;
            let (Notice::Accepted(_, id) | Notice::Socket(id)) = notice else {
                return Some(notice);
            };
            if !streams.table.holds(id) {
                continue;
            }
            let slot = &mut streams.table.slots[id.index()];
            slot.noticed = false;
            if let Some(listener) = slot.accepted_by.take() {
                streams.listeners.note_taken(listener);
            }
            return Some(notice);
        }
    }

    /// Returns whether an address is one of ours.
    #[must_use]
    pub fn is_ours(&self, addr: core::net::IpAddr) -> bool {
        self.out.net.is_ours(addr)
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// [`ListenError`]: the port is taken, or not one that can be.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        Accept::listen(&mut self.services.streams, &self.out, listen)
    }

    /// Listens on a port no more. Connections that were established there stay, those of which
    /// [`Self::poll_notice`] has not told yet among them; half-open ones are forgotten. Its name is
    /// not given again.
    pub fn unlisten(&mut self, listener: ListenerId) {
        let Services { accept, streams, .. } = &mut self.services;
        accept.unlisten(streams, &mut self.out, listener);
    }

    /// Listens on a port for TLS: what is accepted there is read and written as plaintext. Where
    /// the device does not seal, files that are opened from now on are read by the host, which
    /// does.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn listen_tls(
        &mut self,
        listen: Listen,
        server: TlsServer,
    ) -> Result<ListenerId, ListenError> {
        let Services { accept, streams, .. } = &mut self.services;
        accept.listen_tls(streams, &self.out, &mut self.files, listen, server)
    }

    /// Sets an option of a listener, for connections that are established from now on.
    pub fn set_listener_option(&mut self, listener: ListenerId, option: ListenerOption) {
        let Services { accept, streams, .. } = &mut self.services;
        accept.set_option(streams, &mut self.out, &self.config, listener, option);
    }

    /// Returns whether the device sets connections of a listener up.
    ///
    /// # Errors
    /// Why not.
    pub fn setup_offload(&self, listener: ListenerId) -> Result<(), Refusal> {
        let listener = self.services.streams.listeners.get(listener.0);
        listener.map_or(Err(Refusal::Disabled), |listener| listener.setup)
    }

    /// What a socket is ready for.
    #[must_use]
    pub fn readiness(&self, socket: SocketId) -> Readiness {
        let config = &self.config;
        match self.services.streams.table.socket(socket) {
            None => Readiness { error: Some(SocketError::Closed), ..Readiness::default() },
            Some(StreamRef::Quasi(quasi)) => quasi.readiness(),
            Some(StreamRef::Tcp(conn)) => conn.readiness(config),
            Some(StreamRef::Tls(conn, session)) => session.readiness(conn.readiness(config)),
        }
    }

    /// The peer's end.
    #[must_use]
    pub fn remote(&self, socket: SocketId) -> Option<Endpoint> {
        self.tuple(socket).map(|tuple| tuple.remote)
    }

    /// Our end.
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

    /// The received bytes that can be read without a copy: the first contiguous run, empty where
    /// there are none.
    #[must_use]
    pub fn peek(&self, socket: SocketId) -> &[u8] {
        self.services.streams.peek(socket)
    }

    /// Takes bytes off the front of what [`Self::peek`] showed.
    pub fn consume(&mut self, socket: SocketId, bytes: usize) {
        self.services.streams.consume(&mut self.out, &self.config, socket, bytes);
    }

    /// Copies received bytes out; gives how many.
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

    /// Appends bytes to the send stream without copying; gives how many were taken. The rest fits
    /// once the socket is writable again.
    ///
    /// # Errors
    /// [`SendError`]: the connection is gone or shut down.
    pub fn send(
        &mut self,
        now: Instant,
        socket: SocketId,
        bytes: Bytes,
    ) -> Result<usize, SendError> {
        let (mut cx, Services { streams, .. }) = self.parts(now);
        if let Some(quasi) = streams.table.quasi_mut(socket) {
            if quasi.write(&bytes, cx.config) {
                return Ok(bytes.len());
            }
            streams.make_whole(&mut cx, socket);
        }
        streams.check_open(socket)?;
        streams.touch(socket);
        if streams.has_session(socket) {
            return Ok(streams.session_send(&mut cx, socket, bytes));
        }
        Ok(streams.table.get_mut(socket).map_or(0, |conn| conn.write(bytes, cx.config)))
    }

    /// Room for bytes of host memory.
    #[must_use]
    pub fn send_room(&self, socket: SocketId) -> usize {
        let config = &self.config;
        match self.services.streams.table.socket(socket) {
            None => 0,
            Some(StreamRef::Quasi(quasi)) => {
                config.send_bytes_max.saturating_sub(quasi.written() as usize)
            }
            Some(StreamRef::Tcp(conn) | StreamRef::Tls(conn, _)) => conn.send_room(config),
        }
    }

    /// Bytes written and not yet acknowledged.
    #[must_use]
    pub fn send_queue(&self, socket: SocketId) -> u64 {
        match self.services.streams.table.socket(socket) {
            None => 0,
            Some(StreamRef::Quasi(quasi)) => quasi.written().into(),
            Some(StreamRef::Tcp(conn)) => conn.send_queue(),
            Some(StreamRef::Tls(conn, session)) => conn.send_queue() + session.queued(),
        }
    }

    /// Closes our direction once everything written has been sent.
    pub fn shutdown(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, Services { streams, .. }) = self.parts(now);
        streams.make_whole(&mut cx, socket);
        streams.touch(socket);
        if !streams.session_shutdown(socket) {
            if let Some(conn) = streams.table.get_mut(socket) {
                conn.shutdown();
            }
        }
    }

    /// `SHUT_RD`: nothing more is read. What was received and not read, and what still comes, is
    /// acknowledged and discarded, and the socket is as if the peer had closed its direction. Once
    /// our direction is closed as well, more data is answered with a reset (RFC 1122 section
    /// 4.2.2.13).
    pub fn shutdown_read(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, Services { streams, .. }) = self.parts(now);
        streams.make_whole(&mut cx, socket);
        if let Some(conn) = streams.table.get_mut(socket) {
            conn.modes.read_shut = true;
            conn.modes.notify = true;
            streams.discard_unread(cx.out, cx.config, socket);
            streams.touch(socket);
        }
    }

    /// Lets go of a socket. What was written is still delivered; unread bytes turn the close into a
    /// reset (RFC 2525 section 2.17), and so does what the peer still sends.
    /// [`Host::close_lingering`] discards both instead.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, services) = self.parts(now);
        services.streams.close(&mut cx, socket, LateData::Reset);
    }

    /// Lets go of a socket as [`Host::close`] does, but discards what was not read and what the
    /// peer still sends, up to `bytes_max` bytes from now on; more is answered with a reset. For
    /// servers that close first, whose response a reset could destroy.
    pub fn close_lingering(&mut self, now: Instant, socket: SocketId, bytes_max: u32) {
        let (mut cx, services) = self.parts(now);
        services.streams.close(&mut cx, socket, LateData::Discard { bytes_max });
    }

    /// Resets the connection and lets go of the socket.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        let (mut cx, services) = self.parts(now);
        services.streams.abort(&mut cx, socket);
    }

    /// Returns whether what is read and written at a socket is the plaintext of TLS.
    #[must_use]
    pub fn speaks_tls(&self, socket: SocketId) -> bool {
        self.services.streams.has_session(socket)
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
        let (mut cx, services) = self.parts(now);
        services.streams.attach_tls(&mut cx, socket, keys)
    }

    /// Sets an option of a connection.
    pub fn set_option(&mut self, now: Instant, socket: SocketId, option: SocketOption) {
        let (mut cx, Services { streams, .. }) = self.parts(now);
        if let (SocketOption::NoDelay(on), Some(quasi)) = (option, streams.table.quasi_mut(socket))
        {
            quasi.no_delay = on;
            return;
        }
        streams.make_whole(&mut cx, socket);
        streams.with(&mut cx, socket, |conn, cx| conn.set_option(option, cx.now));
    }

    /// What `outboard ss` shows of a connection.
    #[must_use]
    pub fn info(&self, socket: SocketId) -> Option<SocketInfo> {
        let (conn, tls) = match self.services.streams.table.socket(socket)? {
            StreamRef::Quasi(quasi) => {
                let tuple = quasi.tcb.tuple(&self.services.streams.table.addrs);
                return Some(quasi.info(&tuple, self.file_offload(), &self.config));
            }
            StreamRef::Tcp(conn) => (conn, None),
            StreamRef::Tls(conn, session) => (conn, session.info(conn)),
        };
        let file = conn.snd.spans.files().next();
        let offload = file.map_or_else(|| self.file_offload(), |f| self.files.offload_of(f));
        let nvme = self.services.streams.nvme_info(socket);
        Some(SocketInfo { tls, nvme, ..conn.info(&self.config, offload) })
    }

    /// Every connection.
    pub fn sockets(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.services.streams.ids()
    }

    /// Appends `len` bytes of a file from `offset` to the send stream: metadata only, any length at
    /// once.
    ///
    /// # Errors
    /// [`SendError`]: the connection is gone or shut down, or the file has no such range.
    pub fn offload_write(
        &mut self,
        now: Instant,
        socket: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let (mut cx, Services { streams, .. }) = self.parts(now);
        streams.make_whole(&mut cx, socket);
        streams.check_open(socket)?;
        streams.touch(socket);
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
