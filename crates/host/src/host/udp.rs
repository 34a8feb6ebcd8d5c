//! UDP and the operations of QUIC's offload, for the application.

use alloc::boxed::Box;
use core::net::IpAddr;

use abi::quic::{QuicAdd, QuicId, QuicLimits, QuicRekey, QuicRoute};
use abi::{FlowId, Op, PacketBuf, Refusal};
use base::Instant;

use super::Host;
use crate::api::{ListenError, UdpId};
use crate::udp::{UdpReceived, UdpSend};

impl Host {
    /// Binds a port, on one address or on all of ours.
    ///
    /// # Errors
    /// [`ListenError`]: it is bound already, or cannot be.
    pub fn udp_bind(&mut self, addr: Option<IpAddr>, port: u16) -> Result<UdpId, ListenError> {
        self.services.udp.bind(&self.out, addr, port)
    }

    /// Lets go of a socket; what waits on it is dropped.
    pub fn udp_close(&mut self, id: UdpId) {
        self.services.udp.close(&mut self.out, id);
    }

    /// Returns the oldest frame that waits on a socket.
    pub fn udp_recv(&mut self, id: UdpId) -> Option<UdpReceived> {
        self.services.udp.receive(id)
    }

    /// Gives the buffer of a received frame back.
    pub fn recycle(&mut self, packet: PacketBuf) {
        self.out.recycle.push_back(packet);
    }

    /// Sends datagrams from a socket's port. If there is no route to the peer they are dropped and
    /// counted, as the network would.
    pub fn udp_send(&mut self, now: Instant, id: UdpId, send: UdpSend) {
        self.services.udp.send(&mut self.out, now, id, send);
    }

    /// Returns the most bytes of datagrams that are worth giving to one [`Self::udp_send`].
    #[must_use]
    pub const fn udp_bytes_max(&self) -> u32 {
        self.out.offloads.transmit_bytes_max
    }

    /// Returns the largest IP packet that the link carries.
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.out.net.mtu
    }

    /// Returns what the device does for QUIC.
    ///
    /// # Errors
    /// Why there is no such engine for this host.
    pub const fn quic_offload(&self) -> Result<QuicLimits, Refusal> {
        self.services.udp.quic_offload()
    }

    /// Returns a name for a flow over UDP, never used before for one that still matters.
    pub fn new_flow(&mut self) -> FlowId {
        self.services.udp.new_flow()
    }

    /// Returns a name for one direction of a QUIC connection, never used before.
    pub fn new_quic_id(&mut self) -> QuicId {
        self.services.udp.new_quic_id()
    }

    /// Has the device protect or decrypt packets; [`crate::Notice::Quic`] tells if it will not.
    pub fn quic_add(&mut self, add: Box<QuicAdd>) {
        self.out.ops.push_back(Op::QuicAdd(add));
    }

    /// Gives the device the next generation of keys.
    pub fn quic_rekey(&mut self, rekey: Box<QuicRekey>) {
        self.out.ops.push_back(Op::QuicRekey(rekey));
    }

    /// Adds what leads to a connection, or takes it away.
    pub fn quic_route(&mut self, route: Box<QuicRoute>) {
        self.out.ops.push_back(Op::QuicRoute(route));
    }

    /// Has the device forget one direction.
    pub fn quic_remove(&mut self, quic: QuicId) {
        self.out.ops.push_back(Op::QuicRemove { quic });
    }
}
