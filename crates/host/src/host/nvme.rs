//! PDUs of NVMe/TCP, for what speaks it above a socket.
//!
//! Called by [`crate::nvme::Transport`], and by users with a transport of their own.

use alloc::sync::Arc;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::l5o::L5oId;
use abi::nvme_tcp::NvmeTcpState;
use base::Instant;
use bytes::Bytes;

use super::Host;
use crate::api::{SendError, SocketId};
use crate::l5p::nvme_tcp::pdus::PduData;
use crate::net::outbox::Outbox;
use crate::stream::Streams;
use crate::tcp::conn::Cx;

impl Host {
    /// Begins to send PDUs with data digests on a connection: `crypto` computes those that the
    /// device does not fill in. The device is asked for a context, again by itself after each of
    /// its resets; the connection's end gives it back. `over` in `state` is filled in here.
    ///
    /// # Errors
    /// Why the device is not asked. PDUs can be sent all the same.
    pub fn nvme_tx_context(
        &mut self,
        now: Instant,
        socket: SocketId,
        state: NvmeTcpState,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Result<L5oId, Refusal> {
        let (mut cx, services) = self.parts(now);
        services.streams.nvme_tx_context(&mut cx, socket, state, crypto)
    }

    /// Appends a PDU to the send stream, whole: `header` with all that precedes the data, `data`,
    /// and if `digest` says so and there is data, its CRC32C. Returns the bytes of PDUs written on
    /// the connection so far, for [`Self::pdus_acknowledged`].
    ///
    /// # Errors
    /// [`SendError`]: the connection is gone or shut down, the file has no such range, or a digest
    /// is wanted of what has no [`Self::nvme_tx_context`].
    pub fn send_pdu(
        &mut self,
        now: Instant,
        socket: SocketId,
        header: Bytes,
        data: PduData,
        digest: bool,
    ) -> Result<u64, SendError> {
        let (mut cx, services) = self.parts(now);
        services.streams.send_pdu(&mut cx, socket, header, data, digest)
    }

    /// The largest result of [`Self::send_pdu`] all of whose bytes the peer's TCP has acknowledged,
    /// and which the device reads no more, for a retransmission that was in vain; zero if there is
    /// none.
    #[must_use]
    pub fn pdus_acknowledged(&self, socket: SocketId) -> u64 {
        self.services.streams.pdus_acknowledged(socket)
    }

    /// Returns the sockets and the outbox, for work of the transport that takes no time.
    pub(crate) fn nvme_streams(&mut self) -> (&mut Outbox, &mut Streams) {
        (&mut self.out, &mut self.services.streams)
    }

    /// Returns the sockets, for the transport: its part of a connection is there.
    pub(crate) fn streams(&mut self, now: Instant) -> (Cx<'_>, &mut Streams) {
        let (cx, services) = self.parts(now);
        (cx, &mut services.streams)
    }
}
