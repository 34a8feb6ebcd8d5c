//! `nsplice` (AccelTCP section 5.1), for the application.

use abi::Refusal;
use base::{Duration, Instant};

use super::Host;
use crate::api::{SocketId, SpliceError, SpliceId, SpliceMeta};

impl Host {
    /// Begins to splice two established sockets. What was received and not read is relayed first;
    /// then, when everything is acknowledged on both sides, the device takes both connections.
    ///
    /// Until [`crate::Notice::Spliced`] or [`crate::Notice::SpliceRefused`] with the name that this
    /// returns, the application neither reads, writes nor closes them. Without a packet for
    /// `idle_timeout` a spliced pair is reset.
    ///
    /// # Errors
    /// [`SpliceError`]: they are not both established, or it is known already that the device will
    /// not do it. The sockets are as they were.
    pub fn nsplice(
        &mut self,
        now: Instant,
        a: SocketId,
        b: SocketId,
        idle_timeout: Duration,
    ) -> Result<SpliceId, SpliceError> {
        let (mut cx, services) = self.parts(now);
        services.splices.begin(&mut services.streams, &mut cx, a, b, idle_timeout)
    }

    /// Returns whether the device splices.
    ///
    /// # Errors
    /// Why not.
    pub const fn splice_offload(&self) -> Result<(), Refusal> {
        self.services.splices.offload()
    }

    /// Ends a splice: both connections are reset.
    pub fn unsplice(&mut self, id: SpliceId) {
        self.services.splices.unsplice(&mut self.out, id);
    }

    /// Ends every splice.
    pub fn unsplice_all(&mut self) {
        self.services.splices.unsplice_all(&mut self.out);
    }

    /// Returns what became of a splice that has ended, once.
    pub fn take_splice(&mut self, id: SpliceId) -> Option<SpliceMeta> {
        self.services.splices.take_ended(id)
    }
}
