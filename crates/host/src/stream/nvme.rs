//! Sending NVMe/TCP PDUs: the socket's calls, and the device's context for data digests.
//!
//! Called by users of NVMe/TCP on a socket, plain or TLS. A PDU is appended to the send stream
//! whole and at once, in the order of the calls, regardless of the room: the caller bounds its
//! outstanding PDUs. If the device computes digests, the stream holds a description of the PDU
//! (`tx_pdus`). Otherwise the host computes the digest: of memory at once, of a file when it has
//! read all of the data. This module neither parses PDUs nor knows their types.

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oRefused, L5oState, ResyncRequest};
use abi::nvme_tcp::{DdpId, DdpTeardownDone, NvmeRxClaims, NvmeTcpState, PREFIX_BYTES_MAX};
use abi::{FlowId, Op, Refusal};
use base::{SeqNum, internal_error};
use bytes::Bytes;

use super::Streams;
use super::table::SocketSlot;
use crate::api::{Notice, NvmeInfo, SendError, SocketError, SocketId};
use crate::l5p::L5pConnection;
use crate::l5p::nvme_tcp::rx_offload::NvmeRxOffload;
use crate::l5p::nvme_tcp::tx_pdus::{NvmeTxPdus, OutgoingPdu, PduData, TxContent};
use crate::l5p::transforms::L5pUnit;
use crate::net::outbox::Outbox;
use crate::storage::source::StreamSource;
use crate::tcp::conn::TcpEnv;

impl Streams {
    /// Begins to send PDUs with data digests on a connection; `crypto` computes those that the
    /// device does not. Requests a digest context from the device, and again after each reset of
    /// the device; the context is destroyed with the connection. `tls` in `state` is filled in
    /// here.
    ///
    /// # Errors
    /// Why no context was requested. PDUs can be sent nevertheless.
    pub(crate) fn nvme_tx_context(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        state: NvmeTcpState,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Result<L5oId, Refusal> {
        self.promote(cx, socket);
        let conn = self.table.get_mut(socket).ok_or(Refusal::Ended)?;
        let pdus = conn.snd.transforms.pdus.get_or_insert_default();
        pdus.begin(state, crypto);
        match pdus.context() {
            Some(context) => Ok(context),
            None => self.install_digests(cx, socket),
        }
    }

    /// Requests a digest context from the device, if it supports that and the connection has
    /// digests. Records the reason if not.
    fn install_digests(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId) -> Result<L5oId, Refusal> {
        let installed = self.try_digests(cx, socket);
        let pdus =
            self.table.get_mut(socket).and_then(|conn| conn.snd.transforms.pdus.as_deref_mut());
        if let (Some(pdus), Err(why)) = (pdus, installed) {
            pdus.refuse(why);
        }
        installed
    }

    fn try_digests(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId) -> Result<L5oId, Refusal> {
        let over = if self.has_session(socket) {
            // The digest context needs the device's TLS context: if the host encrypts, the digest
            // must be known before.
            let context = self.with_session(cx, socket, |session, conn, _| session.tx_at(conn));
            Some(context.flatten().ok_or(Refusal::Encrypted)?)
        } else {
            None
        };
        let install = |conn: &mut L5pConnection, cx: &mut TcpEnv<'_>| {
            let (flow, tcpsn) = (conn.flow, conn.seq(conn.snd.spans.end()));
            let may_write = conn.state.may_write();
            let pdus = conn.snd.transforms.pdus.as_deref_mut().filter(|_| may_write);
            let pdus = pdus.ok_or(Refusal::Ended)?;
            let state = NvmeTcpState { tls: over, ..pdus.state().ok_or(Refusal::Ended)? };
            if !cx.out.offloads.nvme_tcp?.tx || !state.data_digest {
                return Err(Refusal::NotSupported);
            }
            let context = cx.out.new_context();
            let (direction, state) = (L5oDirection::Transmit, L5oState::NvmeTcp(state));
            let create = L5oCreate { context, flow, direction, tcpsn, state };
            cx.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            cx.out.counters.nvme_tx_device += 1;
            pdus.renew(context);
            Ok(context)
        };
        self.with(cx, socket, install).unwrap_or(Err(Refusal::Ended))
    }

    /// Requests a digest context again after a reset of the device, or when a full table may have
    /// room, for PDUs written from now on.
    pub(crate) fn reinstall_digests(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId) {
        let pdus = |conn: &L5pConnection| {
            conn.snd.transforms.pdus.as_ref().is_some_and(|p| p.has_digests())
        };
        if self.table.get(socket).is_some_and(pdus) {
            // If it is refused, the host continues to compute digests.
            let _refused = self.install_digests(cx, socket);
        }
    }

    /// Appends a whole PDU to the send stream: `header` (everything that precedes the data),
    /// `data`, and the data's CRC32C if `digest` is set and there is data. Returns the number of
    /// PDU bytes written on the connection so far, for [`Self::pdus_acknowledged`].
    ///
    /// # Errors
    /// [`SendError`]: the connection has ended or is closed for sending, the file has no such
    /// range, or a digest is requested without [`Self::nvme_tx_context`].
    pub(crate) fn send_pdu(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        header: Bytes,
        data: PduData,
        digest: bool,
    ) -> Result<u64, SendError> {
        self.promote(cx, socket);
        self.check_open(socket)?;
        let is_due = |conn: &L5pConnection| {
            conn.snd.transforms.pdus.as_ref().is_some_and(|pdus| pdus.is_request_due())
        };
        if digest && self.table.get(socket).is_some_and(is_due) {
            self.reinstall_digests(cx, socket);
        }
        let gone = SendError::NotConnected(SocketError::Closed);
        let conn = self.table.get_mut(socket).ok_or(gone)?;
        let pdus = conn.snd.transforms.pdus.get_or_insert_default();
        if digest && !pdus.has_digests() {
            return Err(SendError::NoDigests);
        }
        let (data, data_len) = match data {
            PduData::None => (StreamSource::Memory(Bytes::new()), 0),
            PduData::Memory(bytes) => {
                let len = u32::try_from(bytes.len()).map_err(|_| SendError::BadExtent)?;
                (StreamSource::Memory(bytes), len)
            }
            PduData::File { len, .. } if digest && len > PREFIX_BYTES_MAX => {
                return Err(SendError::BadExtent);
            }
            PduData::File { file, offset, len } => {
                let source = cx.files.source(file, offset, len.into());
                (source.ok_or(SendError::BadExtent)?, len)
            }
        };
        let mut pdu = OutgoingPdu { header, data, data_len, digest, mark: 0 };
        pdu.mark = pdus.mark(pdu.len());
        let mark = pdu.mark;
        self.write_pdu(cx, socket, pdu);
        Ok(mark)
    }

    fn write_pdu(&mut self, cx: &mut TcpEnv<'_>, socket: SocketId, pdu: OutgoingPdu) {
        if self.has_session(socket) {
            self.with_session(cx, socket, |session, conn, cx| session.send_pdu(conn, cx, pdu));
            self.mark_dirty(socket);
        } else {
            self.mark_dirty(socket);
            if let Some(conn) = self.table.get_mut(socket) {
                conn.write_pdu(cx, pdu);
            }
        }
    }

    /// Returns the largest result of [`Self::send_pdu`] whose bytes the peer's TCP has acknowledged
    /// completely, and which the device no longer reads for a retransmission; 0 if there is none.
    #[must_use]
    pub(crate) fn pdus_acknowledged(&self, socket: SocketId) -> u64 {
        let conn = self.table.get(socket);
        let pdus = conn.and_then(|conn| Some((conn.snd.transforms.pdus.as_deref()?, conn.snd.una)));
        pdus.map_or(0, |(pdus, una)| pdus.acknowledged(una))
    }

    /// Requests a receive context from the device: [`NvmeRxOffload::attach`].
    pub(crate) fn nvme_attach(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        state: NvmeTcpState,
        skip: u32,
    ) -> Option<SeqNum> {
        let (conn, session, port) = self.table.slot_mut(socket)?.layers_mut()?;
        NvmeRxOffload::attach(port, conn, session.as_deref(), cx, state, skip)
    }

    /// Returns whether a receive context is missing and may be requested:
    /// [`NvmeRxOffload::needs_context`].
    pub(crate) fn nvme_is_to_attach(
        &mut self,
        out: &mut Outbox,
        socket: SocketId,
        position: SeqNum,
    ) -> bool {
        let layers = self.table.slot_mut(socket).and_then(SocketSlot::layers_mut);
        let Some((conn, session, Some(port))) = layers else { return false };
        port.needs_context(conn, session.as_deref(), out, position)
    }

    /// Returns the state of a connection's receive offload, if it has one.
    pub(crate) fn nvme_rx_offload(&mut self, socket: SocketId) -> Option<&mut NvmeRxOffload> {
        let (_, _, port) = self.table.slot_mut(socket)?.layers_mut()?;
        port.as_deref_mut()
    }

    /// Returns the current receive context.
    pub(crate) fn nvme_context(&mut self, socket: SocketId) -> Option<L5oId> {
        self.nvme_rx_offload(socket)?.context().ok()
    }

    /// Registers a buffer with the device: [`NvmeRxOffload::register`].
    pub(crate) fn nvme_register(
        &mut self,
        out: &mut Outbox,
        socket: SocketId,
        range: (u16, u32, u32, u32),
        buffer: AlignedBuf,
    ) -> Result<DdpId, AlignedBuf> {
        match self.table.slot_mut(socket).and_then(SocketSlot::layers_mut) {
            Some((conn, _, Some(port))) => port.register(conn.flow, out, range, buffer),
            _ => Err(buffer),
        }
    }

    /// Returns what the device did with the bytes that [`Self::peek`] returns, and their position
    /// in the payload. `None` if it did nothing, or if the bytes are a decrypted copy.
    pub(crate) fn nvme_placed(&mut self, socket: SocketId) -> Option<(&mut NvmeRxClaims, usize)> {
        let (conn, session, port) = self.table.slot_mut(socket)?.layers_mut()?;
        let context = port.as_deref()?.context().ok()?;
        if session.is_some_and(|session| !session.peeks_in_place()) {
            return None;
        }
        let (metadata, at) = conn.rcv.metadata_mut()?;
        let placed = metadata.nvme_tcp_mut()?;
        (placed.context == Some(context)).then_some((placed, at))
    }

    /// Returns the state shown by `outboard ss`.
    pub(crate) fn nvme_info(&self, socket: SocketId) -> Option<NvmeInfo> {
        let slot = self.table.slot(socket)?;
        let (conn, port) = (slot.stream.conn()?, slot.nvme.as_deref()?);
        let tx_offload = conn.snd.transforms.pdus.as_deref().and_then(NvmeTxPdus::offload);
        Some(NvmeInfo { tx_offload, rx_offload: port.context().map(drop) })
    }

    /// Handles the return of a buffer.
    pub(crate) fn nvme_buffer_returned(&mut self, cx: &mut TcpEnv<'_>, done: DdpTeardownDone) {
        let id = SocketId::of_flow(done.flow);
        match self.nvme_rx_offload(id) {
            Some(port) => {
                port.handle_buffer_returned(cx.out, done);
                cx.out.notices.push_back(Notice::Socket(id));
            }
            None => cx.out.counters.events_ignored += 1,
        }
    }

    /// Handles the device's question whether a PDU begins at a position. Returns false if the
    /// context is not one of NVMe/TCP.
    pub(crate) fn nvme_resync(
        &mut self,
        cx: &mut TcpEnv<'_>,
        flow: FlowId,
        context: L5oId,
        request: ResyncRequest,
    ) -> bool {
        let id = SocketId::of_flow(flow);
        let Some(port) = self.nvme_rx_offload(id).filter(|port| port.context() == Ok(context))
        else {
            return false;
        };
        if port.handle_resync(request) {
            cx.out.notices.push_back(Notice::Socket(id));
        }
        true
    }

    /// Handles the refusal of a context. Returns false if the context is not one of NVMe/TCP
    /// reception.
    pub(crate) fn nvme_refused(&mut self, cx: &mut TcpEnv<'_>, refused: &L5oRefused) -> bool {
        let id = SocketId::of_flow(refused.flow);
        let layers = self.table.slot_mut(id).and_then(SocketSlot::layers_mut);
        let Some((conn, _, Some(port))) = layers else { return false };
        if port.context() != Ok(refused.context) {
            return false;
        }
        port.handle_refused(cx.out, refused.reason, conn.rcv.next());
        cx.out.notices.push_back(Notice::Socket(id));
        true
    }

    /// Handles a reset of the device.
    pub(super) fn nvme_device_reset(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        if self.nvme_rx_offload(id).is_some_and(|port| port.handle_device_reset(cx.out)) {
            cx.out.notices.push_back(Notice::Socket(id));
        }
    }

    /// Destroys the receive context of a connection that has ended.
    pub(super) fn nvme_ended(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        if let Some(port) = self.nvme_rx_offload(id) {
            port.end(cx.out);
        }
    }
}

impl L5pConnection {
    /// Appends a PDU to the send stream of a connection without a TLS session.
    fn write_pdu(&mut self, cx: &mut TcpEnv<'_>, pdu: OutgoingPdu) {
        let Some(pdus) = &mut self.snd.transforms.pdus else {
            internal_error!(
                cx.out.counters.internal_errors,
                "a PDU on a connection that sends none"
            );
            return;
        };
        let mark = pdu.mark;
        for (text, len) in pdus.stream_content(pdu, true, &mut cx.out.counters) {
            match text {
                TxContent::Plain(source) => self.snd.spans.push_plain(source, len),
                TxContent::Pdu(pdu) => self.snd.spans.push_unit(L5pUnit::Pdu(pdu)),
            }
        }
        pdus.note(mark, self.snd.spans.end(), self.snd.una);
    }
}
