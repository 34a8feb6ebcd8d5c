//! NVMe/TCP PDUs on a socket.
//!
//! Called by [`crate::nvme::NvmeTransport`], and by users with a transport of their own.

use alloc::sync::Arc;

use abi::Refusal;
use abi::crypto::CryptoProvider;
use abi::l5o::L5oId;
use abi::nvme_tcp::NvmeTcpState;
use base::Instant;
use bytes::Bytes;

use super::Host;
use crate::api::{SendError, SocketId};
use crate::l5p::nvme_tcp::tx_pdus::PduData;
use crate::net::outbox::Outbox;
use crate::stream::Streams;
use crate::tcp::conn::TcpEnv;

impl Host {
    /// Begins to send PDUs with data digests on a connection; `crypto` computes those that the
    /// device does not. Requests a digest context from the device, and again after each reset of
    /// the device; the context is destroyed with the connection. `over` in `state` is filled in
    /// here.
    ///
    /// # Errors
    /// Why no context was requested. PDUs can be sent nevertheless.
    pub fn nvme_tx_context(
        &mut self,
        now: Instant,
        socket: SocketId,
        state: NvmeTcpState,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Result<L5oId, Refusal> {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.nvme_tx_context(&mut cx, socket, state, crypto)
    }

    /// Appends a whole PDU to the send stream: `header` (everything that precedes the data),
    /// `data`, and the data's CRC32C if `digest` is set and there is data. Returns the number of
    /// PDU bytes written on the connection so far, for [`Self::pdus_acknowledged`].
    ///
    /// # Errors
    /// [`SendError`]: the connection has ended or is closed for sending, the file has no such
    /// range, or a digest is requested without [`Self::nvme_tx_context`].
    pub fn send_pdu(
        &mut self,
        now: Instant,
        socket: SocketId,
        header: Bytes,
        data: PduData,
        digest: bool,
    ) -> Result<u64, SendError> {
        let (mut cx, services) = self.context_and_services(now);
        services.streams.send_pdu(&mut cx, socket, header, data, digest)
    }

    /// Returns the largest result of [`Self::send_pdu`] whose bytes the peer's TCP has acknowledged
    /// completely, and which the device no longer reads for a retransmission; 0 if there is none.
    #[must_use]
    pub fn pdus_acknowledged(&self, socket: SocketId) -> u64 {
        self.services.streams.pdus_acknowledged(socket)
    }

    /// Returns the outbox and the stream sockets, for calls of the transport that need no time.
    pub(crate) fn nvme_streams(&mut self) -> (&mut Outbox, &mut Streams) {
        (&mut self.out, &mut self.services.streams)
    }

    /// Returns the stream sockets and their context, for the transport, whose per-connection state
    /// is there.
    pub(crate) fn streams(&mut self, now: Instant) -> (TcpEnv<'_>, &mut Streams) {
        let (cx, services) = self.context_and_services(now);
        (cx, &mut services.streams)
    }
}
