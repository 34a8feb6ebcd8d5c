//! `nsplice` (AccelTCP section 5.1), for the application.

use abi::Refusal;
use base::{Duration, Instant};

use super::Host;
use crate::api::{SocketId, SpliceError, SpliceId, SpliceMeta};

impl Host {
    /// Begins to splice two established sockets. Unread bytes are relayed first; when everything is
    /// acknowledged on both sides, the device takes both connections.
    ///
    /// The application must not read, write or close the sockets until [`crate::Notice::Spliced`]
    /// or [`crate::Notice::SpliceRefused`] with the returned identifier. A spliced pair is reset
    /// after `idle_timeout` without a packet.
    ///
    /// # Errors
    /// [`SpliceError`]: the sockets are not both established, or it is already known that the
    /// device will not splice them. The sockets are unchanged.
    pub fn nsplice(
        &mut self,
        now: Instant,
        a: SocketId,
        b: SocketId,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError> {
        let (mut cx, services) = self.context_and_services(now);
        services.splices.begin(&mut services.streams, &mut cx, a, b, idle_timeout)
    }

    /// Returns whether the device splices.
    ///
    /// # Errors
    /// Why not.
    pub const fn splice_offload(&self) -> Result<(), Refusal> {
        self.services.splices.offload()
    }

    /// Ends a splice: resets both connections.
    pub fn unsplice(&mut self, id: SpliceId) {
        self.services.splices.unsplice(&mut self.out, id);
    }

    /// Ends every splice.
    pub fn unsplice_all(&mut self) {
        self.services.splices.unsplice_all(&mut self.out);
    }

    /// Returns the result of a splice that has ended, once.
    pub fn take_splice(&mut self, id: SpliceId) -> Option<SpliceMeta> {
        self.services.splices.take_ended(id)
    }
}
