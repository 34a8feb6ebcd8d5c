//! How a host ends, so that no peer is left to find out by itself: half of [`Host`].
//!
//! A protocol between both halves. The host closes its ports, resets its connections and asks the
//! device to end what it relays; when the operations for all that are handed over, and no pair is
//! between the two, it asks the device to quiesce ([`abi::Op::Quiesce`]). The device resets what it
//! tears down, and answers when the link has taken every frame. An operation before may have come
//! back refused meanwhile, with a connection in it: then the host asks once more.

use alloc::vec::Vec;

use abi::Op;
use base::Instant;

use crate::api::{ListenerId, SocketId};
use crate::host::Host;

/// State of the end of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Ending {
    /// It works.
    #[default]
    Running,
    /// Resets are on their way to the device.
    Resetting,
    /// The device was asked.
    Quiescing,
    /// The device has sent everything.
    Ended,
}

impl Host {
    /// Ends: closes every port and resets every connection, those of the device too. Until
    /// [`Self::has_ended`] the driver still hands events and operations over, but runs no
    /// application.
    pub fn end(&mut self, now: Instant) {
        if self.ending != Ending::Running {
            return;
        }
        self.ending = Ending::Resetting;
        for index in 0..self.listeners.len() {
            u32::try_from(index).into_iter().for_each(|index| self.unlisten(ListenerId(index)));
        }
        self.unsplice_all();
        self.reset_all(now);
    }

    /// Returns whether the device has sent all that was to be sent, after [`Self::end`].
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ending == Ending::Ended
    }

    /// Resets every connection but those that the device may own already.
    fn reset_all(&mut self, now: Instant) {
        let sockets: Vec<SocketId> =
            self.sockets().filter(|socket| !self.splices.has(socket.index)).collect();
        sockets.into_iter().for_each(|socket| self.abort(now, socket));
    }

    /// Called when there is nothing else to hand over: the next step of the end. Says whether there
    /// may be operations again.
    pub(crate) fn advance_end(&mut self, now: Instant) -> bool {
        if self.ending != Ending::Resetting {
            return false;
        }
        if self.sockets().any(|socket| !self.splices.has(socket.index)) {
            self.reset_all(now);
            return true;
        }
        if self.splices.has_pairs() {
            return false;
        }
        self.ending = Ending::Quiescing;
        self.out.ops.push_back(Op::Quiesce);
        true
    }

    /// The device has sent everything, or has lost it.
    pub(crate) fn handle_quiesced(&mut self) {
        if self.ending == Ending::Quiescing {
            let is_clean = self.sockets().next().is_none() && !self.splices.has_pairs();
            self.ending = if is_clean { Ending::Ended } else { Ending::Resetting };
        }
    }

    /// The device was reset: what it was asked for is forgotten.
    pub(crate) fn resume_end(&mut self) {
        if self.ending == Ending::Quiescing {
            self.ending = Ending::Resetting;
        }
    }
}
