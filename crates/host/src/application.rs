//! The interface between an application and the driver of its host.
//!
//! Content server, proxy, NVMe target and NVMe initiator implement it, and so does a program that
//! embeds the stack. Crate `node` calls it, from a thread, a simulation or a test. It says nothing
//! about what an application does above the host's sockets.

use alloc::string::String;

use base::Instant;

use crate::{Host, Notice};

/// An application above a [`Host`].
///
/// The driver calls it between the events that the host has handled and the operations that the
/// host has for the device. No method may block. `now` never goes back.
///
/// Several applications share a host as a tuple: each is told of every notice, and passes over
/// those about sockets, files and reads that are not its own.
pub trait Application {
    /// Looks at what may have changed outside of the host, before the first notice of a turn.
    fn begin_turn(&mut self) {}

    /// Takes a notice of the host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice);

    /// Acts on the deadlines that are over.
    fn handle_timeout(&mut self, _now: Instant, _host: &mut Host) {}

    /// Returns when to call [`Self::handle_timeout`] at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does the work that the notices of a turn have made possible, after the last of them; returns
    /// whether there was any.
    fn advance(&mut self, _now: Instant, _host: &mut Host) -> bool {
        false
    }

    /// Hears that a file of that path is about to be opened for the application, by the device or
    /// by the host.
    fn note_open(&mut self, _path: &[u8]) {}

    /// Accepts no connection from now on, and ends those that there are with what they are at.
    fn drain(&mut self, _now: Instant, _host: &mut Host) {}

    /// Ends: tells peers whose connections are not the host's, and the log. The host ends next; the
    /// application still gets notices of that, and nothing else.
    fn end(&mut self, _now: Instant, _host: &mut Host) {}

    /// Returns the next line of the access log, without its line end.
    fn poll_log(&mut self) -> Option<String> {
        None
    }

    /// Calls `f` with the name and value of each counter and gauge.
    fn visit(&self, _f: &mut dyn FnMut(&'static str, u64)) {}
}

/// No application: notices are dropped.
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
