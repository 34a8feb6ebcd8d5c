//! UDP and the operations of QUIC offload, for the application.

use alloc::boxed::Box;
use core::net::IpAddr;

use abi::quic::{QuicAdd, QuicId, QuicLimits, QuicRekey, QuicRouteChange};
use abi::{FlowId, Op, PacketBuf, Refusal};
use base::Instant;

use super::Host;
use crate::api::{ListenError, UdpId};
use crate::udp::{UdpReceived, UdpSend};

impl Host {
    /// Binds a socket to a port, on one local address or on all of them.
    ///
    /// # Errors
    /// [`ListenError`]: the port is in use, or the address cannot be bound.
    pub fn udp_bind(&mut self, addr: Option<IpAddr>, port: u16) -> Result<UdpId, ListenError> {
        self.services.udp.bind(&self.out, addr, port)
    }

    /// Closes a socket and drops the datagrams queued on it.
    pub fn udp_close(&mut self, id: UdpId) {
        self.services.udp.close(&mut self.out, id);
    }

    /// Removes and returns the oldest frame queued on a socket.
    pub fn udp_recv(&mut self, id: UdpId) -> Option<UdpReceived> {
        self.services.udp.receive(id)
    }

    /// Returns the buffer of a received frame to the device.
    pub fn recycle(&mut self, packet: PacketBuf) {
        self.out.recycle.push_back(packet);
    }

    /// Sends datagrams from a socket's port. Without a route to the peer they are dropped and
    /// counted, as the network would do.
    pub fn udp_send(&mut self, now: Instant, id: UdpId, send: UdpSend) {
        self.services.udp.send(&mut self.out, now, id, send);
    }

    /// Returns the maximum payload, in bytes, of one [`Self::udp_send`] that the device takes in
    /// one transmit.
    #[must_use]
    pub const fn udp_bytes_max(&self) -> u32 {
        self.out.offloads.transmit_bytes_max
    }

    /// Returns the MTU of the link: the largest IP packet that it carries.
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.out.net.mtu
    }

    /// Returns the limits of the device's QUIC engine.
    ///
    /// # Errors
    /// Why the engine is not available to this host.
    pub const fn quic_offload(&self) -> Result<QuicLimits, Refusal> {
        self.services.udp.quic_offload()
    }

    /// Returns a new identifier for a UDP flow, not in use by any other flow.
    pub fn new_flow(&mut self) -> FlowId {
        self.services.udp.new_flow()
    }

    /// Returns a new identifier for one direction of a QUIC connection, never used before.
    pub fn new_quic_id(&mut self) -> QuicId {
        self.services.udp.new_quic_id()
    }

    /// Asks the device to protect or decrypt packets; [`crate::Notice::Quic`] reports a refusal.
    pub fn quic_add(&mut self, add: Box<QuicAdd>) {
        self.out.ops.push_back(Op::QuicAdd(add));
    }

    /// Passes the next generation of keys to the device.
    pub fn quic_rekey(&mut self, rekey: Box<QuicRekey>) {
        self.out.ops.push_back(Op::QuicRekey(rekey));
    }

    /// Adds or removes a connection ID or address that routes packets to a connection.
    pub fn quic_route(&mut self, route: Box<QuicRouteChange>) {
        self.out.ops.push_back(Op::QuicRoute(route));
    }

    /// Removes one direction of a connection from the device.
    pub fn quic_remove(&mut self, quic: QuicId) {
        self.out.ops.push_back(Op::QuicRemove { quic });
    }
}
