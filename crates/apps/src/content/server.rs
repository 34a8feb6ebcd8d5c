//! The table of connections and their deadlines.
//!
//! [`super::ContentServer`] forwards the host's notices. A deadline that moves later leaves its
//! connection's alarm where it is; the deadline is compared again when the alarm fires. So a usual
//! request moves no alarm.

use abi::{FileFault, FileId, Refusal};
use base::{DeadlineHeap, Instant};
use host::DiskUser;

use super::ContentServerConfig;
use super::answer::{ListenerService, Responder};
use super::connection::{ConnAction, HttpConnection, HttpConnectionEnv};
use super::file_cache::{FileOpenOutcome, OpenWaiter};
use super::sockets::ContentSockets;
use super::upload::Uploads;

/// Event for which a connection is called.
#[derive(Clone, Copy)]
enum HttpConnectionEvent {
    Readiness,
    Opened(Result<(), FileFault>),
    Upload,
    Timeout,
    Drain,
}

/// The content server, generic over the sockets.
pub(crate) struct HttpServer<I> {
    pub(crate) responder: Responder,
    config: ContentServerConfig,
    /// Connections by their socket's index.
    slots: Vec<Option<HttpConnection<I>>>,
    connections: usize,
    deadlines: DeadlineHeap,
    next_serial: u32,
    /// Results of opens for which HTTP/3 requests wait, by the request's serial number.
    pub(crate) http3_open_results: Vec<(u32, Result<(), FileFault>)>,
    /// Serial numbers of the HTTP/3 requests whose uploads have changed.
    pub(crate) http3_resumed: Vec<u32>,
}

/// Number of slots by which the table of connections grows.
const GROW_SLOTS: usize = 1024;

impl<I: Copy + Eq> HttpServer<I> {
    pub(crate) fn new(config: ContentServerConfig) -> Self {
        Self {
            responder: Responder::new(&config),
            config,
            slots: Vec::new(),
            connections: 0,
            deadlines: DeadlineHeap::default(),
            next_serial: 0,
            http3_open_results: Vec::new(),
            http3_resumed: Vec::new(),
        }
    }

    /// Returns the number of connections in the table.
    pub(crate) const fn connections(&self) -> usize {
        self.connections
    }

    /// Handles a connection that was accepted by a listener of `service`.
    pub(crate) fn handle_accepted<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        socket: I,
        service: ListenerService,
    ) {
        let index = S::index(socket);
        let Ok(key) = u32::try_from(index) else { return };
        // An earlier connection with this index has ended without a notice.
        self.remove(index);
        if self.connections >= self.config.connections_max {
            self.responder.counters.http_connections_refused += 1;
            host.abort(now, socket);
            return;
        }
        self.responder.counters.http_connections += 1;
        let rules = self.responder.inspection.start(now, host, socket);
        if self.slots.len() <= index {
            if index >= self.slots.capacity() {
                // Grows in steps, because doubling would leave half of a large table empty.
                self.slots.reserve_exact(index + GROW_SLOTS - self.slots.len());
            }
            self.slots.resize_with(index + 1, || None);
        }
        let connection =
            HttpConnection::new(socket, self.next_serial, service, rules, now, &self.config);
        self.next_serial = self.next_serial.wrapping_add(1);
        self.deadlines.set(key, connection.deadline);
        self.slots[index] = Some(connection);
        self.connections += 1;
        // The first request may have arrived already.
        self.dispatch(now, host, index, HttpConnectionEvent::Readiness);
        self.finish_turn(now, host);
    }

    /// Handles a change of a connection's readiness.
    pub(crate) fn handle_socket<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        socket: I,
    ) {
        let index = S::index(socket);
        let connection = self.slots.get(index).and_then(Option::as_ref);
        if connection.is_some_and(|connection| connection.socket == socket) {
            self.dispatch(now, host, index, HttpConnectionEvent::Readiness);
            self.finish_turn(now, host);
        }
    }

    /// Forgets a connection that waits for the first byte of a request, as a new one does. Returns
    /// whether it did; false if each connection has one request, as while connections are drained.
    pub(crate) fn give_up<S: ContentSockets<Id = I>>(&mut self, socket: I) -> bool {
        let index = S::index(socket);
        let connection = self.slots.get(index).and_then(Option::as_ref);
        let gives_up = self.config.requests_per_connection_max > 1
            && connection.is_some_and(|connection| {
                connection.socket == socket && connection.is_as_accepted()
            });
        if gives_up {
            self.remove(index);
            self.responder.counters.http_connections_given_up += 1;
        }
        gives_up
    }

    /// Handles the end of an open.
    pub(crate) fn handle_file<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        file: FileId,
    ) {
        let Some(result) = host.offload_fstat(file) else { return };
        let uploads = self.responder.uploads.as_mut();
        if uploads.is_some_and(|uploads| uploads.handle_opened(file, result)) {
            return self.finish_turn(now, host);
        }
        match self.responder.file_opened(now, file, result) {
            FileOpenOutcome::Resume(waiters, result) => self.resume(now, host, &waiters, result),
            FileOpenOutcome::Reopen(path) => {
                // Evicted handles are closed first: operations reach the device in this order.
                self.close_files(host);
                if let Some(file) = host.offload_open(&path) {
                    self.responder.files.begin_reopen(&path, file);
                } else {
                    let waiters = self.responder.files.cancel(&path);
                    let full = FileFault::Refused(Refusal::TableFull);
                    self.resume(now, host, &waiters, Err(full));
                }
            }
            // An open handle may have failed: the device was reset and no longer has the file.
            FileOpenOutcome::Unknown if result.is_err() => self.responder.files.invalidate(file),
            FileOpenOutcome::Unknown => {}
        }
        self.finish_turn(now, host);
    }

    /// Handles the completed disk operations of a user.
    pub(crate) fn handle_disk<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        user: DiskUser,
    ) {
        let Responder { uploads, inspection, counters, .. } = &mut self.responder;
        if let Some(uploads) = uploads {
            uploads.handle_disk(host, user, &mut |content, bytes| {
                let admitted = inspection.admits_content(content, bytes);
                counters.http_denied += u64::from(!admitted);
                admitted
            });
            self.finish_turn(now, host);
        }
    }

    /// Makes every further response the last of its connection, and closes idle connections.
    pub(crate) fn drain<S: ContentSockets<Id = I>>(&mut self, now: Instant, host: &mut S) {
        self.config.requests_per_connection_max = 1;
        for index in 0..self.slots.len() {
            self.dispatch(now, host, index, HttpConnectionEvent::Drain);
        }
        self.finish_turn(now, host);
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn handle_timeout<S: ContentSockets<Id = I>>(&mut self, now: Instant, host: &mut S) {
        while let Some(key) = self.deadlines.pop(now) {
            let index = key as usize;
            let Some(connection) = self.slots.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            let deadline = connection.deadline;
            if deadline > now {
                self.deadlines.set(key, deadline);
            } else {
                self.dispatch(now, host, index, HttpConnectionEvent::Timeout);
            }
        }
        self.responder.files.handle_timeout(now);
        self.finish_turn(now, host);
    }

    /// Returns the time at which to call [`Self::handle_timeout`]; this may be too early.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let files = self.responder.files.poll_timeout();
        let next = self.deadlines.next().map_or(files, |at| at.min(files));
        (next != Instant::FAR_FUTURE).then_some(next)
    }

    fn resume<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        waiters: &[OpenWaiter],
        result: Result<(), FileFault>,
    ) {
        for waiter in waiters {
            match *waiter {
                OpenWaiter::Request(serial) => self.http3_open_results.push((serial, result)),
                OpenWaiter::Connection { index, serial } => {
                    let connection = self.slots.get(index as usize).and_then(Option::as_ref);
                    if connection.is_some_and(|connection| connection.serial == serial) {
                        self.dispatch(
                            now,
                            host,
                            index as usize,
                            HttpConnectionEvent::Opened(result),
                        );
                    }
                }
            }
        }
    }

    fn dispatch<S: ContentSockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        index: usize,
        cause: HttpConnectionEvent,
    ) {
        let Some(connection) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        let (responder, config) = (&mut self.responder, &self.config);
        let mut cx = HttpConnectionEnv { now, host, responder, config };
        let fate = match cause {
            HttpConnectionEvent::Readiness | HttpConnectionEvent::Upload => {
                connection.handle_readiness(&mut cx)
            }
            HttpConnectionEvent::Opened(result) => connection.handle_opened(&mut cx, result),
            HttpConnectionEvent::Timeout => connection.handle_timeout(&mut cx),
            HttpConnectionEvent::Drain => connection.handle_drain(&mut cx),
        };
        if fate == ConnAction::Closed {
            self.remove(index);
        } else if let Ok(key) = u32::try_from(index) {
            self.deadlines.set(key, connection.deadline);
        }
    }

    fn remove(&mut self, index: usize) {
        let Some(connection) = self.slots.get_mut(index).and_then(Option::take) else { return };
        self.connections -= 1;
        connection.pending_files().for_each(|file| self.responder.files.unpin(file));
        if let (Some(id), Some(uploads)) = (connection.upload(), &mut self.responder.uploads) {
            uploads.end(id);
        }
        if let Ok(key) = u32::try_from(index) {
            self.deadlines.clear(key);
        }
    }

    /// Lets connections continue whose uploads have changed, and closes the files that uploads and
    /// the cache have dropped.
    pub(crate) fn finish_turn<S: ContentSockets<Id = I>>(&mut self, now: Instant, host: &mut S) {
        while let Some(owner) = self.responder.uploads.as_mut().and_then(Uploads::poll_resumed) {
            match owner {
                OpenWaiter::Request(serial) => self.http3_resumed.push(serial),
                OpenWaiter::Connection { index, serial } => {
                    let connection = self.slots.get(index as usize).and_then(Option::as_ref);
                    if connection.is_some_and(|connection| connection.serial == serial) {
                        self.dispatch(now, host, index as usize, HttpConnectionEvent::Upload);
                    }
                }
            }
        }
        if let Some(uploads) = &mut self.responder.uploads {
            uploads.begin_decoding(host);
        }
        self.responder.expire_published();
        self.close_files(host);
    }

    fn close_files<S: ContentSockets<Id = I>>(&mut self, host: &mut S) {
        while let Some(file) = self.responder.poll_close() {
            host.offload_close(file);
        }
    }
}

#[cfg(test)]
mod tests;
