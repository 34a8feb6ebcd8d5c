//! The application's end: sockets with readiness, and the four calls of IO-TCP's table 3.
//!
//! Half of [`Host`]. No call blocks, none sends: what is written leaves at the next
//! [`Host::poll_op`]. A socket that does not exist any more answers like one that was closed.

use abi::setup::ListenId;
use abi::teardown::LateData;
use abi::{Op, Refusal};
use base::{Duration, Instant};
use bytes::Bytes;
use tcp_rules::paws::TsRecent;
use wire::{Endpoint, Tuple};

use crate::api::{
    ConnectError, FileId, FileStat, Listen, ListenError, ListenerId, Notice, Readiness, SendError,
    SocketError, SocketId, SocketInfo, SocketOption,
};
use crate::host::Host;
use crate::l5p::Connection;
use crate::l5p::tls::{Session, TlsClient, TlsServer};
use crate::table::{Place, StreamMut, StreamRef};
use crate::tcp::conn::{Begin, Cx, Negotiated};
use crate::tcp::listen::Listener;
use crate::tcp::state::State;

/// How long a tuple has to have been in TIME-WAIT before we use it again ourselves.
const REUSE: Duration = Duration::from_secs(1);

impl Host {
    /// The next thing that happened. An application that waits for nothing asks until there is
    /// none.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        loop {
            let notice = self.notices.pop_front()?;
            let (Notice::Accepted(_, id) | Notice::Socket(id)) = notice else {
                return Some(notice);
            };
            if !self.table.holds(id) {
                continue;
            }
            let slot = &mut self.table.slots[id.index()];
            slot.noticed = false;
            if let Some(listener) = slot.accepted_by.take() {
                self.note_taken(listener);
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
        let Listen { addr, port, backlog } = listen;
        if port == 0 || addr.is_some_and(|a| !self.out.net.is_ours(a)) {
            return Err(ListenError::BadAddress);
        }
        let overlaps =
            |l: &Listener| l.port == port && (l.addr == addr || l.addr.is_none() || addr.is_none());
        if self.listeners.iter().flatten().any(overlaps) {
            return Err(ListenError::InUse(port));
        }
        let Ok(id) = u32::try_from(self.listeners.len()) else {
            return Err(ListenError::BadAddress);
        };
        let backlog = backlog.max(1);
        self.listeners.push(Some(Listener::new(addr, port, backlog)));
        Ok(ListenerId(id))
    }

    /// Listens on a port no more. Connections that were established there stay, those of which
    /// [`Self::poll_notice`] has not told yet among them; half-open ones are forgotten. Its name is
    /// not given again.
    pub fn unlisten(&mut self, listener: ListenerId) {
        let state = self.listeners.get_mut(listener.0 as usize).and_then(Option::take);
        let Some(state) = state else { return };
        if state.told {
            self.out.ops.push_back(Op::Unlisten { listener: ListenId(listener.0) });
        }
        self.tls_servers.remove(&listener.0);
        for slot in self.table.syn_cache.of_listener(listener.0) {
            self.drop_half_open(slot);
        }
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
        let id = self.listen(listen)?;
        self.tls_servers.insert(id.0, server);
        if !self.out.l5o.is_ok_and(|limits| limits.tls_tx) {
            self.files.offload = self.files.offload.and(Err(Refusal::Encrypted));
        }
        Ok(id)
    }

    /// Begins to open a connection; a notice tells when it is established or has failed.
    ///
    /// # Errors
    /// [`ConnectError`]: there is no way to send, no port, or no room.
    pub fn connect(&mut self, now: Instant, remote: Endpoint) -> Result<SocketId, ConnectError> {
        let addr = self.out.net.source_for(remote.addr).ok_or(ConnectError::NoRoute)?;
        if self.table.len() >= self.config.connections_max {
            return Err(ConnectError::TableFull);
        }
        let tuple = self.pick_port(now, Endpoint { addr, port: 0 }, remote)?;
        let iss = self.take_over(&tuple).unwrap_or_else(|| self.initial_sequence(now, &tuple));
        let id = self.table.next_id();
        let config = &self.config.tcp;
        let scale = self.own_scale();
        let begin = Begin {
            tuple,
            flow: id.into(),
            iss,
            irs: base::SeqNum(0),
            window: u32::from(self.first_window()),
            scale,
            peer_window: 0,
            options: Negotiated {
                timestamps: config.timestamps,
                sack: config.sack,
                ecn: config.ecn,
                peer_scale: 0,
                peer_mss: u16::MAX,
                ts_offset: self.timestamp_offset(&tuple),
                ts_recent: TsRecent::default(),
            },
            mtu: self.out.net.mtu,
        };
        let conn = Connection::new(begin, config, now);
        self.table.insert(id, conn, None);
        self.out.counters.tcp_active_opens += 1;
        self.touch(id);
        Ok(id)
    }

    /// As [`Self::connect`], for TLS: the handshake begins once the connection is established, and
    /// the socket is writable when it is over.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_tls(
        &mut self,
        now: Instant,
        remote: Endpoint,
        client: &TlsClient,
    ) -> Result<SocketId, ConnectError> {
        let id = self.connect(now, remote)?;
        if let Some(slot) = self.table.slots.get_mut(id.index()) {
            slot.attach(Session::client(client));
        }
        if let Some(conn) = self.table.get_mut(id) {
            conn.modes.session_waits = true;
        }
        Ok(id)
    }

    /// RFC 6056 section 3.3.3: ports in turn, from a beginning that is a secret of each peer. So a
    /// port comes again as late as can be: where the peer has closed, it keeps the tuple in
    /// TIME-WAIT, and a SYN with an older timestamp than it saw there costs a second. One in our
    /// own TIME-WAIT is as good as free once a second has passed, where timestamps tell both
    /// connections' segments apart (RFC 6191, and Linux's `tcp_tw_reuse`).
    fn pick_port(
        &mut self,
        now: Instant,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<Tuple, ConnectError> {
        let (first, last) = (*self.config.ports.start(), *self.config.ports.end());
        let span = u64::from(last.saturating_sub(first)) + 1;
        // No connection has this tuple, so its hash tells nobody a sequence number.
        let secret = self.iss_key.tuple(&Tuple { local: Endpoint { port: 0, ..local }, remote });
        for _ in 0..span {
            let place = secret.wrapping_add(self.ports_tried) % span;
            self.ports_tried += 1;
            let Ok(offset) = u16::try_from(place) else { continue };
            let local = Endpoint { port: first.saturating_add(offset), ..local };
            let tuple = Tuple { local, remote };
            match self.table.find(&tuple) {
                None if self.splices.takes(&tuple) => {}
                None => return Ok(tuple),
                Some(Place::TimeWait(slot)) => {
                    let remains = self.table.time_wait.at(slot);
                    if remains.is_some_and(|r| r.tcb.ts_recent.is_some() && r.since + REUSE <= now)
                    {
                        return Ok(tuple);
                    }
                }
                Some(_) => {}
            }
        }
        Err(ConnectError::NoPort)
    }

    /// Takes a tuple out of TIME-WAIT, if it is there; gives the sequence number to begin with:
    /// beyond anything that the old connection can have sent, as Linux does it.
    fn take_over(&mut self, tuple: &Tuple) -> Option<base::SeqNum> {
        let Some(Place::TimeWait(slot)) = self.table.find(tuple) else { return None };
        self.table.unroute(tuple, Place::TimeWait(slot));
        let remains = self.table.time_wait.remove(slot)?;
        self.out.counters.tcp_time_wait_reused += 1;
        Some(remains.tcb.snd_nxt + 65_537)
    }

    /// What a socket is ready for.
    #[must_use]
    pub fn readiness(&self, socket: SocketId) -> Readiness {
        let config = &self.config.tcp;
        match self.table.socket(socket) {
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
        self.table.socket(socket).map(|socket| self.table.tuple_of(&socket))
    }

    /// The received bytes that can be read without a copy: the first contiguous run, empty where
    /// there are none.
    #[must_use]
    pub fn peek(&self, socket: SocketId) -> &[u8] {
        match self.table.socket(socket) {
            None => &[],
            Some(StreamRef::Quasi(quasi)) => quasi.peek(),
            Some(StreamRef::Tcp(conn)) => conn.rcv.peek(),
            Some(StreamRef::Tls(conn, session)) => session.peek(&conn.rcv),
        }
    }

    /// Takes bytes off the front of what [`Self::peek`] showed.
    pub fn consume(&mut self, socket: SocketId, bytes: usize) {
        match self.table.socket_mut(socket) {
            None => return,
            Some(StreamMut::Quasi(quasi)) => {
                return self.out.recycle.extend(quasi.consume(bytes));
            }
            Some(StreamMut::Tcp(conn)) => self.out.recycle.extend(conn.rcv.consume(bytes)),
            Some(StreamMut::Tls(conn, session)) => {
                // Room for more records: they are decrypted at the next event, or by the turn in
                // `poll_op`.
                session.consume(conn, &mut self.out, &self.config.tcp, bytes);
                conn.modes.session_waits = session.waits();
            }
        }
        // The window may have opened.
        self.touch(socket);
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
    pub fn send(&mut self, socket: SocketId, bytes: Bytes) -> Result<usize, SendError> {
        if let Some(quasi) = self.table.quasi_mut(socket) {
            if quasi.write(&bytes, &self.config.tcp) {
                return Ok(bytes.len());
            }
            self.make_whole(self.latest, socket);
        }
        self.check_open(socket)?;
        if self.has_session(socket) {
            self.touch(socket);
            return Ok(self.session_send(socket, bytes));
        }
        let Some(conn) = self.table.get_mut(socket) else { return Ok(0) };
        let taken = conn.write(bytes, &self.config.tcp);
        self.touch(socket);
        Ok(taken)
    }

    /// Room for bytes of host memory.
    #[must_use]
    pub fn send_room(&self, socket: SocketId) -> usize {
        let config = &self.config.tcp;
        match self.table.socket(socket) {
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
        match self.table.socket(socket) {
            None => 0,
            Some(StreamRef::Quasi(quasi)) => quasi.written().into(),
            Some(StreamRef::Tcp(conn)) => conn.send_queue(),
            Some(StreamRef::Tls(conn, session)) => conn.send_queue() + session.queued(),
        }
    }

    pub(crate) fn check_open(&self, socket: SocketId) -> Result<(), SendError> {
        let (conn, shut) = match self.table.socket(socket) {
            Some(StreamRef::Tcp(conn)) => (conn, false),
            Some(StreamRef::Tls(conn, session)) => (conn, session.is_shut()),
            Some(StreamRef::Quasi(_)) | None => {
                return Err(SendError::NotConnected(SocketError::Closed));
            }
        };
        if conn.state.may_write() && !conn.snd.fin && !shut {
            Ok(())
        } else {
            Err(SendError::NotConnected(conn.error.unwrap_or(SocketError::Closed)))
        }
    }

    /// Closes our direction once everything written has been sent.
    pub fn shutdown(&mut self, socket: SocketId) {
        self.make_whole(self.latest, socket);
        if self.session_shutdown(socket) {
            self.touch(socket);
        } else if let Some(conn) = self.table.get_mut(socket) {
            conn.shutdown();
            self.touch(socket);
        }
    }

    /// `SHUT_RD`: nothing more is read. What was received and not read, and what still comes, is
    /// acknowledged and discarded, and the socket is as if the peer had closed its direction. Once
    /// our direction is closed as well, more data is answered with a reset (RFC 1122 section
    /// 4.2.2.13).
    pub fn shutdown_read(&mut self, socket: SocketId) {
        self.make_whole(self.latest, socket);
        if let Some(conn) = self.table.get_mut(socket) {
            conn.modes.read_shut = true;
            conn.modes.notify = true;
            self.discard_unread(socket);
            self.touch(socket);
        }
    }

    /// Discards all that can be read.
    pub(crate) fn discard_unread(&mut self, socket: SocketId) {
        loop {
            let bytes = self.peek(socket).len();
            if bytes == 0 {
                break;
            }
            self.out.counters.tcp_discarded_bytes += bytes as u64;
            self.consume(socket, bytes);
        }
    }

    /// Lets go of a socket. What was written is still delivered; unread bytes turn the close into a
    /// reset (RFC 2525 section 2.17), and so does what the peer still sends.
    /// [`Host::close_lingering`] discards both instead.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        self.close_with(now, socket, LateData::Reset);
    }

    /// Lets go of a socket, now or when what came late has been dealt with.
    pub(crate) fn close_with(&mut self, now: Instant, socket: SocketId, late: LateData) {
        if self.close_quasi(now, socket, late) {
            return;
        }
        // What is left may be the end that the peer said, and no data.
        self.session_turn(now, socket);
        let Some(conn) = self.table.get_mut(socket) else { return };
        conn.modes.held = false;
        conn.late_data = late;
        let state = conn.state;
        self.discard_late_data(now, socket);
        let Some(conn) = self.table.get(socket) else { return };
        let unread = conn.rcv.ready_bytes() > 0 || !self.peek(socket).is_empty();
        match state {
            State::Closed | State::TimeWait => self.free(socket),
            State::SynSent => self.abort(now, socket),
            // Lingering, what is left is the beginning of a record.
            _ if unread && late == LateData::Reset => self.abort(now, socket),
            _ if self.session_shutdown(socket) => {
                self.touch(socket);
                self.session_turn(now, socket);
                self.try_tear_down(now, socket);
            }
            _ => {
                self.with(now, socket, |conn, cx| conn.close(cx));
                self.try_tear_down(now, socket);
            }
        }
    }

    /// Resets the connection and lets go of the socket.
    pub fn abort(&mut self, now: Instant, socket: SocketId) {
        self.make_whole(now, socket);
        let Some(conn) = self.table.get_mut(socket) else { return };
        conn.modes.held = false;
        self.with(now, socket, |conn, cx| conn.abort(cx, SocketError::Closed));
    }

    /// Sets an option of a connection.
    pub fn set_option(&mut self, now: Instant, socket: SocketId, option: SocketOption) {
        if let (SocketOption::NoDelay(on), Some(quasi)) = (option, self.table.quasi_mut(socket)) {
            quasi.no_delay = on;
            return;
        }
        self.make_whole(now, socket);
        self.with(now, socket, |conn, _| conn.set_option(option, now));
    }

    /// What `outboard ss` shows of a connection.
    #[must_use]
    pub fn info(&self, socket: SocketId) -> Option<SocketInfo> {
        let (conn, tls) = match self.table.socket(socket)? {
            StreamRef::Quasi(quasi) => {
                let tuple = quasi.tcb.tuple(&self.table.addrs);
                return Some(quasi.info(&tuple, self.file_offload(), &self.config.tcp));
            }
            StreamRef::Tcp(conn) => (conn, None),
            StreamRef::Tls(conn, session) => (conn, session.info(conn)),
        };
        let file = conn.snd.spans.files().next();
        let offload = file.map_or_else(|| self.file_offload(), |f| self.files.offload_of(f));
        let nvme = self.nvme_info(socket);
        Some(SocketInfo { tls, nvme, ..conn.info(&self.config.tcp, offload) })
    }

    /// Every connection.
    pub fn sockets(&self) -> impl Iterator<Item = SocketId> + '_ {
        let slots = self.table.slots.iter().enumerate();
        slots
            .filter_map(|(index, _)| u32::try_from(index).ok().map(|index| self.table.id_of(index)))
            .filter(|&id| self.table.holds(id))
    }

    /// Opens a file beneath the root; [`Notice::File`] tells when that has ended, well or not. None
    /// where too many are open. The path is bytes, as Linux has it.
    pub fn offload_open(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open(&mut self.out, path.as_ref())
    }

    /// Opens a file or a block device beneath the root as a namespace, to be read and written
    /// ([`Host::extent_write`]); [`Notice::File`] tells when that has ended, well or not. The
    /// device reads what is sent of it where it can, whatever becomes of it meanwhile. None where
    /// too many are open.
    pub fn offload_open_namespace(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), false)
    }

    /// As [`Self::offload_open_namespace`], for a namespace that nothing is written to: the file is
    /// opened for reading alone, and a change of it fails.
    pub fn offload_open_namespace_read_only(&mut self, path: impl AsRef<[u8]>) -> Option<FileId> {
        self.files.open_namespace(&mut self.out, path.as_ref(), true)
    }

    /// Metadata of a file; none while the open is under way. A namespace's size stays what it was
    /// at the open.
    #[must_use]
    pub fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, abi::FileFault>> {
        self.files.stat(file)
    }

    /// Appends `len` bytes of a file from `offset` to the send stream: metadata only, any length at
    /// once.
    ///
    /// # Errors
    /// [`SendError`]: the connection is gone or shut down, or the file has no such range.
    pub fn offload_write(
        &mut self,
        socket: SocketId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        self.make_whole(self.latest, socket);
        self.check_open(socket)?;
        if self.has_session(socket) {
            self.touch(socket);
            return self.session_send_file(socket, file, offset, len);
        }
        let source = self.files.source(file, offset, len).ok_or(SendError::BadExtent)?;
        if let Some(conn) = self.table.get_mut(socket) {
            conn.write_file(source, len);
        }
        self.touch(socket);
        Ok(())
    }

    /// The application is done with a file; it is closed when the last byte sent from it is
    /// acknowledged.
    pub fn offload_close(&mut self, file: FileId) {
        self.files.close(&mut self.out, file);
    }
}

impl Connection {
    /// Nobody holds the connection any more.
    fn close(&mut self, cx: &mut Cx<'_>) {
        self.shutdown();
        if self.state == State::FinWait2 {
            self.timers.set(crate::tcp::timers::Timer::Linger, cx.now + cx.config.time_wait);
        }
    }
}
