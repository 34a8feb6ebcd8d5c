//! The interface between an application and the driver of its host.
//!
//! The content server, the proxy, the NVMe target and the NVMe initiator implement it, as do
//! programs that embed the stack. Crate `node` calls it from a thread, a simulation or a test. It
//! does not say how an application uses the host's sockets.

use alloc::string::String;

use base::Instant;

use crate::{Host, Notice, SocketId};

/// An application above a [`Host`].
///
/// The driver calls it after the host has handled events, and before it takes operations for the
/// device. No method may block. `now` never goes back.
///
/// Several applications share a host as a tuple: each receives every notice and ignores those about
/// sockets, files and reads of others.
pub trait Application {
    /// Checks for changes outside the host, before the first notice of a turn.
    fn begin_turn(&mut self) {}

    /// Handles a notice of the host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice);

    /// Forgets a connection if the application of another host can accept it instead, and returns
    /// whether it did. Asked before [`Notice::Socket`], and instead of it if the answer is yes, if
    /// the connection follows its steering entry to another queue ([`Host::queue_to_follow`]). A
    /// connection can be given up if it is in the same state as one that was just accepted.
    fn give_up(&mut self, _socket: SocketId) -> bool {
        false
    }

    /// Handles expired deadlines.
    fn handle_timeout(&mut self, _now: Instant, _host: &mut Host) {}

    /// Returns the latest time at which to call [`Self::handle_timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does the work that the notices of a turn made possible, after the last of them. Returns
    /// whether there was any.
    fn advance(&mut self, _now: Instant, _host: &mut Host) -> bool {
        false
    }

    /// Notes that a file of this path is about to be opened for the application, by the device or
    /// by the host.
    fn note_open(&mut self, _path: &[u8]) {}

    /// Stops accepting connections, and ends the open ones gracefully.
    fn drain(&mut self, _now: Instant, _host: &mut Host) {}

    /// Shuts down: closes the connections that are not the host's (QUIC), and logs the end of all
    /// connections. The host shuts down next; the application still receives its notices, and no
    /// other calls.
    fn end(&mut self, _now: Instant, _host: &mut Host) {}

    /// Returns the next line of the access log, without its line end.
    fn poll_log(&mut self) -> Option<String> {
        None
    }

    /// Calls `f` with the name and value of each counter and gauge.
    fn visit(&self, _f: &mut dyn FnMut(&'static str, u64)) {}
}

/// The empty application: drops all notices.
impl Application for () {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, _: Notice) {}
}

impl<A: Application, B: Application> Application for (A, B) {
    fn begin_turn(&mut self) {
        self.0.begin_turn();
        self.1.begin_turn();
    }

    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.0.handle_notice(now, host, notice);
        self.1.handle_notice(now, host, notice);
    }

    fn give_up(&mut self, socket: SocketId) -> bool {
        self.0.give_up(socket) || self.1.give_up(socket)
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.0.handle_timeout(now, host);
        self.1.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout().into_iter().chain(self.1.poll_timeout()).min()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.0.advance(now, host) | self.1.advance(now, host)
    }

    fn note_open(&mut self, path: &[u8]) {
        self.0.note_open(path);
        self.1.note_open(path);
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.0.drain(now, host);
        self.1.drain(now, host);
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        self.0.end(now, host);
        self.1.end(now, host);
    }

    fn poll_log(&mut self) -> Option<String> {
        self.0.poll_log().or_else(|| self.1.poll_log())
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.0.visit(f);
        self.1.visit(f);
    }
}
