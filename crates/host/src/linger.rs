//! Lingering close: the end of a connection whose peer may still send (RFC 9112 section 9.6).
//!
//! The application has said its last byte and wants no more. A reset in answer to what the peer
//! sends after that, a pipelined request or the alerts and key updates of TLS, could destroy the
//! response before it is read. So late data is taken and discarded, within a bound, until the peer
//! closes: by the host, and by the device when it tears the connection down
//! ([`abi::teardown::LateData`]).
//!
//! Called by the application through [`Host::close_lingering`], by [`Host`] whenever something
//! happened to a connection; TCP's input counts the late data. Memory is not held: what is
//! discarded opens the window again. Time is bounded by the user time-out until everything is
//! acknowledged, and by that of FIN-WAIT-2 afterwards.

use abi::teardown::LateData;
use base::Instant;

use crate::api::SocketId;
use crate::host::Host;

impl Host {
    /// Lets go of a socket as [`Host::close`] does, but discards what was not read and what the
    /// peer still sends, up to `bytes_max` bytes from now on; more is answered with a reset. For
    /// servers that close first, whose response a reset could destroy.
    pub fn close_lingering(&mut self, now: Instant, socket: SocketId, bytes_max: u32) {
        self.close_with(now, socket, LateData::Discard { bytes_max });
    }

    /// Discards what came for an application that has closed the connection lingering.
    pub(crate) fn discard_late_data(&mut self, now: Instant, id: SocketId) {
        let Some(conn) = self.table.get(id) else { return };
        let before = conn.rcv.ready_bytes();
        if conn.modes.held || conn.refuses_data() || before == 0 {
            return;
        }
        if !self.session_discard(now, id) {
            let Some(conn) = self.table.get_mut(id) else { return };
            while conn.rcv.ready_bytes() > 0 {
                let here = conn.rcv.peek().len();
                self.out.recycle.extend(conn.rcv.consume(here));
            }
        }
        // The window may have opened. The first part of a record stays until the rest has come.
        if self.table.get(id).is_some_and(|conn| conn.rcv.ready_bytes() < before) {
            self.touch(id);
        }
    }
}
