//! NVMe/TCP: PDUs over a connection, plain or TLS (NVMe/TCP Transport specification 1.0; Autonomous
//! NIC Offloads, section 5.1).
//!
//! A [`NvmeTransport`] is one end of a connection. Its owner (an initiator or a target) calls
//! [`NvmeTransport::poll`] after each notice about the socket, and passes in commands, responses
//! and data to send. The transport builds and parses PDUs, computes and verifies digests, and
//! writes data to the buffers registered for it ([`NvmeTransport::expect`]). The device does as
//! much of that as it can (`l5p::nvme_tcp::rx_offload` has the host's state of it), and software
//! does the rest; the bytes on the link are the same.
//!
//! Claims of the device are checked against the headers, which the host always reads. A byte counts
//! as placed only if the device placed it in the buffer that is registered under the PDU's tag when
//! the host reads its header, and at the offset in the header. An invalid PDU terminates the
//! connection with a terminate request. Commands are not interpreted here, and the only time-out is
//! that of the exchange of ICReq and ICResp.
//!
//! Files: `receive` (received PDUs), `buffers` (buffers for received data), `send` (sent PDUs).

mod buffers;
mod receive;
mod send;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use bytes::Bytes;
use patterns::PatternSet;
use wire::nvme::pdu::{PduFault, PduRules};

use crate::api::{SocketError, SocketId};
use crate::host::Host;
use crate::l5p::nvme_tcp::rx_offload::NvmeRxOffload;

use self::buffers::NvmeRxBuffers;
use self::receive::NvmePduParser;
pub use self::send::NvmeDataSource;
pub use crate::l5p::nvme_tcp::tx_pdus::PduData;

/// Time-out for the peer's ICReq or ICResp.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeInitiatorParams {
    /// Request header digests.
    pub header_digest: bool,
    /// Request data digests.
    pub data_digest: bool,
    /// Required alignment of received data: number of dwords minus one, 0 to 31.
    pub hpda: u8,
    /// Maximum number of outstanding R2Ts of a command, minus one.
    pub maxr2t: u32,
}

/// Parameters of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTargetParams {
    /// Permit header digests.
    pub header_digest: bool,
    /// Permit data digests.
    pub data_digest: bool,
    /// Required alignment of received data: number of dwords minus one, 0 to 31.
    pub cpda: u8,
    /// Maximum data of an H2CData in bytes: a multiple of four, at least 4,096.
    pub maxh2cdata: u32,
    /// Maximum data in a command capsule, in bytes.
    pub in_capsule_max: u32,
}

/// Parameters negotiated by ICReq and ICResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeNegotiated {
    /// PDUs have header digests.
    pub header_digest: bool,
    /// PDUs have data digests.
    pub data_digest: bool,
    /// Required alignment of sent data: number of dwords minus one.
    pub pda: u8,
    /// Maximum data of an H2CData in bytes.
    pub maxh2cdata: u32,
    /// Maximum number of outstanding R2Ts of a command, minus one.
    pub maxr2t: u32,
}

/// Event of a transport.
#[derive(Debug)]
pub enum NvmeTransportEvent {
    /// PDUs can be sent: [`NvmeTransport::negotiated`] returns the parameters.
    Ready,
    /// A command.
    Command {
        /// Submission queue entry.
        sqe: [u8; 64],
        /// Data in the capsule.
        data: Bytes,
        /// The data matches its digest; true without a digest.
        digest_ok: bool,
    },
    /// A response: its completion queue entry.
    Response([u8; 16]),
    /// A C2HData: its data was written to the command's buffer.
    ReadData {
        /// Command identifier.
        cccid: u16,
        /// Offset in the command's data.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The last data of the command.
        last: bool,
        /// The command has completed successfully, and no response follows.
        success: bool,
        /// The data matches its digest; true without a digest.
        digest_ok: bool,
    },
    /// An H2CData: its data was written to the tag's buffer.
    WriteData {
        /// Command identifier.
        cccid: u16,
        /// Tag of the R2T.
        ttag: u16,
        /// Offset in the command's data.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The last data of the R2T.
        last: bool,
        /// The data matches its digest; true without a digest.
        digest_ok: bool,
    },
    /// An R2T: the controller is ready for data.
    R2t {
        /// Command identifier.
        cccid: u16,
        /// Tag that the H2CData must carry.
        ttag: u16,
        /// Offset in the command's data.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// A buffer of [`NvmeTransport::expect`] is returned: all its data has arrived, or it was
    /// reclaimed.
    Buffer {
        /// Tag.
        tag: u16,
        /// Memory.
        buffer: AlignedBuf,
    },
    /// The connection has ended: nothing more is received, and nothing can be sent. The caller must
    /// close the socket.
    Ended(NvmeTransportEnd),
}

/// A pattern that ends in the data of a command ([`NvmeTransport::start_inspection`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeDataMatch {
    /// Command identifier.
    pub cccid: u16,
    /// Tag of the R2T that requested the data; `None` for in-capsule data and at an initiator.
    pub ttag: Option<u16>,
    /// Index of the pattern in the set.
    pub pattern: u16,
    /// Offset in the command's data after the last byte of the match.
    pub end: u32,
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmeTransportEnd {
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
    /// TCP or TLS ended the connection.
    #[error("{0}")]
    Lost(SocketError),
    /// The peer sent neither ICReq nor ICResp in time.
    #[error("the peer does not speak NVMe/TCP: timed out")]
    Silent,
    /// The peer sent a terminate request.
    #[error("terminated by the peer: {0}")]
    TerminatedByPeer(PduFault),
    /// This side sent a terminate request.
    #[error("terminated: {0}")]
    Terminated(PduFault),
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvmeTransportPhase {
    /// The socket is not known to be established yet.
    Connecting,
    /// The peer's ICReq or ICResp is awaited.
    Setup {
        until: Instant,
    },
    /// Commands and responses.
    Open,
    Ended,
}

/// Role of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvmeTransportRole {
    Initiator(NvmeInitiatorParams),
    Target(NvmeTargetParams),
}

/// One end of an NVMe/TCP connection.
pub struct NvmeTransport {
    socket: SocketId,
    crypto: Arc<dyn CryptoProvider>,
    role: NvmeTransportRole,
    phase: NvmeTransportPhase,
    negotiated: Option<NvmeNegotiated>,
    /// Rules of the PDUs that are sent.
    send: PduRules,
    receiver: NvmePduParser,
    buffers: NvmeRxBuffers,
    /// Events that were not polled yet.
    events: VecDeque<NvmeTransportEvent>,
    /// Mark of the PDU written last.
    written: u64,
    /// The read command whose invalid data terminated the connection.
    faulty_command: Option<u16>,
    /// The data of commands is inspected.
    inspects: bool,
    /// Time of the current call.
    now: Instant,
}

impl core::fmt::Debug for NvmeTransport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NvmeTransport").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl NvmeTransport {
    /// Creates the initiator's end of a socket that is being connected. ICReq is sent once it is
    /// established.
    #[must_use]
    pub fn initiate(
        socket: SocketId,
        crypto: Arc<dyn CryptoProvider>,
        params: NvmeInitiatorParams,
    ) -> Self {
        Self::new(socket, crypto, NvmeTransportRole::Initiator(params))
    }

    /// Creates the target's end of an accepted socket.
    #[must_use]
    pub fn serve(
        socket: SocketId,
        crypto: Arc<dyn CryptoProvider>,
        params: NvmeTargetParams,
    ) -> Self {
        Self::new(socket, crypto, NvmeTransportRole::Target(params))
    }

    fn new(socket: SocketId, crypto: Arc<dyn CryptoProvider>, role: NvmeTransportRole) -> Self {
        Self {
            socket,
            crypto,
            role,
            phase: NvmeTransportPhase::Connecting,
            negotiated: None,
            send: PduRules::NONE,
            receiver: NvmePduParser::new(),
            buffers: NvmeRxBuffers::default(),
            events: VecDeque::new(),
            faulty_command: None,
            inspects: false,
            written: 0,
            now: Instant::ZERO,
        }
    }

    /// Returns the socket.
    #[must_use]
    pub const fn socket(&self) -> SocketId {
        self.socket
    }

    /// Returns the negotiated parameters, after the exchange of ICReq and ICResp.
    #[must_use]
    pub const fn negotiated(&self) -> Option<&NvmeNegotiated> {
        self.negotiated.as_ref()
    }

    /// Begins to inspect the data of commands for patterns, from the next PDU on: C2HData at an
    /// initiator; H2CData and in-capsule data at a target. The data of each command is inspected
    /// for itself, also if several commands carry consecutive blocks, and that of each R2T. The
    /// device inspects what it can, if it offers that. [`Self::poll_inspected`] reports matches.
    pub fn start_inspection(&mut self, now: Instant, host: &mut Host, patterns: Arc<PatternSet>) {
        let (mut cx, streams) = host.streams(now);
        // A connection that has ended receives no data.
        self.inspects = streams.start_inspection(&mut cx, self.socket, patterns, true).is_ok();
    }

    /// As [`Self::poll_inspected`], without the matches.
    pub fn poll(&mut self, now: Instant, host: &mut Host) -> Option<NvmeTransportEvent> {
        self.poll_inspected(now, host, &mut |_| {})
    }

    /// Returns the next event. Must be called until it returns `None`, after each notice about the
    /// socket and at [`Self::poll_timeout`]. Calls `found` for each pattern that ends in inspected
    /// data, in the order of the ends in each command, and before the event about that data, which
    /// may be returned by a later call. The digest of the data may still be found wrong.
    pub fn poll_inspected(
        &mut self,
        now: Instant,
        host: &mut Host,
        found: &mut dyn FnMut(NvmeDataMatch),
    ) -> Option<NvmeTransportEvent> {
        self.now = now;
        if self.events.is_empty() {
            self.start_if_ready(host);
            self.take_returned_buffers(host);
            while self.events.is_empty()
                && self.phase != NvmeTransportPhase::Ended
                && self.step(host, found)
            {}
            // The peer's FIN may have arrived with bytes that were consumed without an event.
            if self.events.is_empty() {
                self.check_end(host);
            }
            self.answer_device(host);
            if self.phase == NvmeTransportPhase::Ended {
                self.discard(host);
            }
        }
        self.events.pop_front()
    }

    /// Returns the time at which to call [`Self::poll`] again if nothing happens before.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            NvmeTransportPhase::Setup { until } => Some(until),
            _ => None,
        }
    }

    /// Registers a buffer for data of the command `cccid` that arrives under `tag` (at an
    /// initiator, the command identifier): `len` bytes from `offset` of the command's data. The
    /// registration ends when all of them have arrived. Must be called before the command, or the
    /// R2T, is sent. Returns the buffer if `len` is 0 or exceeds the buffer, or if the tag is in
    /// use.
    pub fn expect(
        &mut self,
        host: &mut Host,
        (cccid, tag): (u16, u16),
        offset: u32,
        len: u32,
        buffer: AlignedBuf,
    ) -> Option<AlignedBuf> {
        if self.buffers.get(tag).is_some() || len as usize > buffer.len() || len == 0 {
            return Some(buffer);
        }
        let (out, streams) = host.nvme_streams();
        let lent = streams.nvme_register(out, self.socket, (tag, offset, len, 0), buffer);
        self.buffers.insert((cccid, tag), (offset, len), lent);
        None
    }

    /// Returns the number of bytes that have arrived under a tag, even while the device still has
    /// the buffer; `None` if no buffer is registered under it.
    #[must_use]
    pub fn received(&self, tag: u16) -> Option<u32> {
        self.buffers.get(tag).map(|awaited| awaited.received)
    }

    /// Returns the identifier in the read data that terminated the connection, as the peer sent it;
    /// `None` if another PDU did, or none.
    #[must_use]
    pub const fn faulty_command(&self) -> Option<u16> {
        self.faulty_command
    }

    /// Reclaims a buffer, complete or not: [`NvmeTransportEvent::Buffer`] follows. Later data under
    /// the tag is a protocol error.
    pub fn reclaim(&mut self, host: &mut Host, tag: u16) {
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        awaited.given_up = true;
        if awaited.mark_reclaimed() {
            reclaim(host, self.socket, tag);
        }
        self.report_and_return(host, tag);
    }

    /// Abandons the connection for a reason other than a fault of the peer: later data is discarded
    /// without events. Buffers are still returned.
    pub fn abandon(&mut self) {
        self.phase = NvmeTransportPhase::Ended;
    }

    /// Returns the mark up to which the peer's TCP has acknowledged everything; the `send`
    /// functions return marks.
    #[must_use]
    pub fn acknowledged(&self, host: &Host) -> u64 {
        host.pdus_acknowledged(self.socket)
    }

    /// Sends an initiator's first PDU once the socket is ready, and checks the time-out and the
    /// connection.
    fn start_if_ready(&mut self, host: &mut Host) {
        if self.phase == NvmeTransportPhase::Ended {
            return;
        }
        let ready = host.readiness(self.socket);
        match self.phase {
            NvmeTransportPhase::Connecting if ready.writable || ready.readable => {
                self.phase = NvmeTransportPhase::Setup { until: self.now + SETUP_TIMEOUT };
                if let NvmeTransportRole::Initiator(params) = self.role {
                    self.send_setup_request(host, params);
                }
            }
            NvmeTransportPhase::Setup { until } if self.now >= until => {
                return self.end(NvmeTransportEnd::Silent);
            }
            _ => {}
        }
        self.check_end(host);
    }

    /// Ends if the peer has closed or the connection was lost, after everything received before has
    /// been read.
    fn check_end(&mut self, host: &Host) {
        let ready = host.readiness(self.socket);
        if !ready.readable && host.peek(self.socket).is_empty() {
            if let Some(error) = ready.error {
                self.end(NvmeTransportEnd::Lost(error));
            } else if ready.peer_closed {
                self.end(NvmeTransportEnd::Closed);
            }
        }
    }

    /// Discards received bytes after the end. A socket that is closed with unread bytes resets the
    /// connection, and the last PDU sent might not arrive (RFC 2525 section 2.17).
    fn discard(&self, host: &mut Host) {
        loop {
            let len = host.peek(self.socket).len();
            if len == 0 {
                return;
            }
            host.consume(self.socket, len);
        }
    }

    fn end(&mut self, how: NvmeTransportEnd) {
        if self.phase != NvmeTransportPhase::Ended {
            self.phase = NvmeTransportPhase::Ended;
            self.events.push_back(NvmeTransportEvent::Ended(how));
        }
    }

    /// Enters the phase of commands, requests the receive context and the digest context.
    fn enter_open(&mut self, host: &mut Host, negotiated: NvmeNegotiated, ours: u8) {
        let NvmeNegotiated { header_digest, data_digest, pda, .. } = negotiated;
        self.negotiated = Some(negotiated);
        self.send = PduRules { header_digest, data_digest, pda, plen_max: u32::MAX };
        let plen_max = receive::PLEN_MAX;
        self.receiver.rules = PduRules { header_digest, data_digest, pda: ours, plen_max };
        self.phase = NvmeTransportPhase::Open;
        let _followed = self.receiver.attach(self.now, host, self.socket);
        if data_digest {
            let (now, crypto) = (self.now, Arc::clone(&self.crypto));
            // What the device refuses the host does; the counters show which.
            let _ = host.nvme_tx_context(now, self.socket, self.receiver.state(), crypto);
        }
        self.events.push_back(NvmeTransportEvent::Ready);
    }

    /// Takes the buffers that the device has returned.
    fn take_returned_buffers(&mut self, host: &mut Host) {
        while let Some(done) = self.port(host).and_then(NvmeRxOffload::poll_buffer) {
            let tag = done.tag;
            let Some(awaited) = self.buffers.get_mut(tag).filter(|a| a.is_registered_as(done.id))
            else {
                continue;
            };
            let asked = awaited.is_reclaimed();
            awaited.return_buffer(done.buffer.into_pages());
            self.report_and_return(host, tag);
            // The buffer was not reclaimed: its context is gone, and there may be a new one.
            if !asked && host.nvme_streams().1.nvme_context(self.socket) != Some(done.context) {
                self.register_again(host, tag);
            }
        }
    }

    /// Follows a change of a buffer's state: reports checked PDUs, and returns the buffer if it is
    /// complete.
    fn report_and_return(&mut self, host: &mut Host, tag: u16) {
        self.check_digests(host, tag);
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        if !awaited.is_complete() && !awaited.given_up {
            return;
        }
        if !awaited.is_here() && !awaited.is_fully_placed() && awaited.mark_reclaimed() {
            reclaim(host, self.socket, tag);
        }
        if let Some(buffer) = self.buffers.take(tag) {
            self.events.push_back(NvmeTransportEvent::Buffer { tag, buffer });
        }
    }

    /// Answers the device's question, once the answer is known.
    fn answer_device(&mut self, host: &mut Host) {
        let Some(asked) = self.port(host).and_then(|port| port.asked()) else { return };
        if let Some(begins) = self.receiver.is_pdu_start(asked) {
            let (out, streams) = host.nvme_streams();
            if let Some(port) = streams.nvme_rx_offload(self.socket) {
                port.answer(out, asked, begins);
            }
        }
    }

    /// Returns the receive offload of the connection.
    fn port<'a>(&self, host: &'a mut Host) -> Option<&'a mut NvmeRxOffload> {
        host.nvme_streams().1.nvme_rx_offload(self.socket)
    }
}

/// Asks the device to return a buffer. If its context was destroyed, the buffer is already on its
/// way back.
fn reclaim(host: &mut Host, socket: SocketId, tag: u16) {
    let (out, streams) = host.nvme_streams();
    if let Some(port) = streams.nvme_rx_offload(socket) {
        port.reclaim(out, tag);
    }
}
