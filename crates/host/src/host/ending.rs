//! How a host ends, so that no peer is left to find out by itself: [`Host::end`].
//!
//! A protocol between both halves. The host closes its ports, resets its connections and asks the
//! device to end what it relays; when the operations for all that are handed over, and no pair is
//! between the two, it asks the device to quiesce ([`abi::Op::Quiesce`]). The device resets what it
//! tears down, and answers when the link has taken every frame. An operation before may have come
//! back refused meanwhile, with a connection in it: then the host asks once more.

use alloc::vec::Vec;

use abi::Op;
use base::Instant;

use super::{Host, Services};
use crate::api::{ListenerId, SocketId};
use crate::stream::table::Relayed;
use crate::tcp::conn::Cx;

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

impl Ending {
    /// The device was reset: what it was asked for is forgotten.
    pub(super) fn handle_device_reset(&mut self) {
        if *self == Self::Quiescing {
            *self = Self::Resetting;
        }
    }
}

impl Host {
    /// Ends: closes every port and resets every connection, those of the device too. Until
    /// [`Self::has_ended`] the driver still hands events and operations over, but runs no
    /// application.
    pub fn end(&mut self, now: Instant) {
        let (mut cx, services) = self.parts(now);
        services.end(&mut cx);
    }

    /// Returns whether the device has sent all that was to be sent, after [`Self::end`].
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.services.ending == Ending::Ended
    }
}

impl Services {
    fn end(&mut self, cx: &mut Cx<'_>) {
        if self.ending != Ending::Running {
            return;
        }
        self.ending = Ending::Resetting;
        for listener in self.streams.listeners.names() {
            self.accept.unlisten(&mut self.streams, cx.out, ListenerId(listener));
        }
        self.splices.unsplice_all(cx.out);
        self.reset_all(cx);
    }

    /// Returns the sockets that are to be reset: not those that the device may own already, nor
    /// those that wait for its last echo.
    fn sockets_to_reset(&self) -> impl Iterator<Item = SocketId> + '_ {
        let table = &self.streams.table;
        let is_over =
            |socket| table.get(socket).is_some_and(|conn| conn.awaits_device() && !conn.modes.held);
        self.streams
            .ids()
            .filter(move |&socket| table.relayed(socket.index) == Relayed::No && !is_over(socket))
    }

    /// Resets every connection that can be.
    fn reset_all(&mut self, cx: &mut Cx<'_>) {
        let sockets: Vec<SocketId> = self.sockets_to_reset().collect();
        sockets.into_iter().for_each(|socket| self.streams.abort(cx, socket));
    }

    /// Called when there is nothing else to hand over: the next step of the end. Returns whether
    /// there may be operations again.
    pub(super) fn advance_end(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.ending != Ending::Resetting {
            return false;
        }
        if self.sockets_to_reset().next().is_some() {
            self.reset_all(cx);
            return true;
        }
        if self.streams.ids().next().is_some() || self.splices.has_pairs() {
            return false;
        }
        self.ending = Ending::Quiescing;
        cx.out.ops.push_back(Op::Quiesce);
        true
    }

    /// The device has sent everything, or has lost it.
    pub(super) fn handle_quiesced(&mut self) {
        if self.ending == Ending::Quiescing {
            let is_clean = self.streams.ids().next().is_none() && !self.splices.has_pairs();
            self.ending = if is_clean { Ending::Ended } else { Ending::Resetting };
        }
    }
}
