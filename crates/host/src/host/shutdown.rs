//! Shutdown of a host, so that no peer waits for a time-out: [`Host::end`].
//!
//! It is a protocol between host and device. The host closes its listeners, resets its connections
//! and asks the device to reset the pairs that it relays. When all these operations have been
//! passed on, and no pair is between the host and the device, the host asks the device to quiesce
//! ([`abi::Op::Quiesce`]). The device resets the connections that it tears down, and answers when
//! the link has taken every frame. If a refused operation has brought a connection back meanwhile,
//! the host resets it and asks once more.

use alloc::vec::Vec;

use abi::Op;
use base::Instant;

use super::{Host, Services};
use crate::api::{ListenerId, SocketId};
use crate::stream::table::SplicePhase;
use crate::tcp::conn::TcpEnv;

/// Stage of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ShutdownStage {
    /// No shutdown was requested.
    #[default]
    Running,
    /// Resets are being passed to the device.
    Resetting,
    /// The device was asked to quiesce.
    Quiescing,
    /// The device has sent everything.
    Ended,
}

impl ShutdownStage {
    /// Handles a reset of the device, which loses the request to quiesce.
    pub(super) fn handle_device_reset(&mut self) {
        if *self == Self::Quiescing {
            *self = Self::Resetting;
        }
    }
}

impl Host {
    /// Shuts the host down: closes every listener and resets every connection, including those on
    /// the device. Until [`Self::has_ended`] the driver continues to pass events and operations,
    /// but runs no application.
    pub fn end(&mut self, now: Instant) {
        let (mut cx, services) = self.context_and_services(now);
        services.end(&mut cx);
    }

    /// Returns whether the device has sent everything after [`Self::end`].
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.services.ending == ShutdownStage::Ended
    }
}

impl Services {
    fn end(&mut self, cx: &mut TcpEnv<'_>) {
        if self.ending != ShutdownStage::Running {
            return;
        }
        self.ending = ShutdownStage::Resetting;
        for listener in self.streams.listeners.names() {
            self.accept.unlisten(&mut self.streams, cx.out, ListenerId(listener));
        }
        self.splices.unsplice_all(cx.out);
        self.reset_all(cx);
        self.release_auto_addrs(cx);
    }

    /// Returns the sockets to reset, except those that the device may own already and those that
    /// only wait for its last echo.
    fn sockets_to_reset(&self) -> impl Iterator<Item = SocketId> + '_ {
        let table = &self.streams.table;
        let is_over = |socket| {
            table.get(socket).is_some_and(|conn| conn.awaits_device() && !conn.modes.held_by_app)
        };
        self.streams.ids().filter(move |&socket| {
            table.splice_phase(socket.index) == SplicePhase::No && !is_over(socket)
        })
    }

    /// Resets every connection of [`Self::sockets_to_reset`].
    fn reset_all(&mut self, cx: &mut TcpEnv<'_>) {
        let sockets: Vec<SocketId> = self.sockets_to_reset().collect();
        sockets.into_iter().for_each(|socket| self.streams.abort(cx, socket));
    }

    /// Advances the shutdown. Called when there is nothing else to send. Returns whether there may
    /// be operations again.
    pub(super) fn advance_shutdown(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        if self.ending != ShutdownStage::Resetting {
            return false;
        }
        if self.sockets_to_reset().next().is_some() {
            self.reset_all(cx);
            return true;
        }
        if self.streams.ids().next().is_some() || self.splices.has_pairs() {
            return false;
        }
        self.ending = ShutdownStage::Quiescing;
        cx.out.ops.push_back(Op::Quiesce);
        true
    }

    /// Handles the device's answer to [`Op::Quiesce`]. If a connection came back meanwhile, another
    /// round begins.
    pub(super) fn handle_quiesced(&mut self) {
        if self.ending == ShutdownStage::Quiescing {
            let is_clean = self.streams.ids().next().is_none() && !self.splices.has_pairs();
            self.ending = if is_clean { ShutdownStage::Ended } else { ShutdownStage::Resetting };
        }
    }
}
