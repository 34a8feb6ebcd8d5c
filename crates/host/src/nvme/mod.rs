//! NVMe over TCP: PDUs over a connection, plain or with TLS on it (NVMe/TCP Transport specification
//! 1.0; Autonomous NIC Offloads, section 5.1).
//!
//! A [`Transport`] is one end of one connection. Whoever speaks NVMe (an initiator, a target) owns
//! it, gives it its turn after each notice about the socket ([`Transport::poll`]) and hands it what
//! is to be sent. It makes PDUs and takes them apart, computes and checks digests, and puts data
//! into the buffers that were given for it ([`Transport::expect`]). The device does of that what it
//! can: `l5p::nvme_tcp::port` is what the host keeps of it. Software does the rest, to the same
//! bytes.
//!
//! What the device says is checked against the headers, which are always read here: a byte counts
//! as placed only where the device placed it in the buffer that the PDU's tag stands for when its
//! header is read, and at the offset that the header has. What is wrong in a PDU ends the
//! connection by a terminate request. No command is looked at here, and nothing waits for a time
//! but the exchange of ICReq and ICResp.
//!
//! Files: `receive` (what comes), `buffers` (where data goes), `send` (what goes).

mod buffers;
mod receive;
mod send;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use bytes::Bytes;
use wire::nvme::pdu::{Fault, Rules};

use crate::api::{SocketError, SocketId};
use crate::host::Host;
use crate::l5p::nvme_tcp::port::Port;

use self::buffers::Buffers;
use self::receive::Receiver;
pub use self::send::Source;
pub use crate::l5p::nvme_tcp::pdus::PduData;

/// How long the peer may take to say ICReq or ICResp.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// What an initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initiate {
    /// Headers shall have digests.
    pub header_digest: bool,
    /// Data shall have digests.
    pub data_digest: bool,
    /// Alignment of data to us: one less than the dwords, 0 to 31.
    pub hpda: u8,
    /// One less than the most R2Ts of a command at one time.
    pub maxr2t: u32,
}

/// What a target grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serve {
    /// Headers may have digests.
    pub header_digest: bool,
    /// Data may have digests.
    pub data_digest: bool,
    /// Alignment of data to us: one less than the dwords, 0 to 31.
    pub cpda: u8,
    /// Most bytes of data in an H2CData: a multiple of four, 4,096 or more.
    pub maxh2cdata: u32,
    /// Most bytes of data in a capsule.
    pub in_capsule_max: u32,
}

/// What ICReq and ICResp have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// Alignment of data to the peer: one less than the dwords.
    pub pda: u8,
    /// Most bytes of data in an H2CData.
    pub maxh2cdata: u32,
    /// One less than the most R2Ts of a command at one time.
    pub maxr2t: u32,
}

/// What came.
#[derive(Debug)]
pub enum Incoming {
    /// PDUs can be sent: [`Transport::negotiated`] says how.
    Ready,
    /// A command.
    Command {
        /// Its submission queue entry.
        sqe: [u8; 64],
        /// Data in the capsule.
        data: Bytes,
        /// Whether that has the digest that came with it.
        digest_ok: bool,
    },
    /// A completion queue entry.
    Response([u8; 16]),
    /// A C2HData: its data has come to the buffer of the command.
    ReadData {
        /// The command.
        cccid: u16,
        /// Where in its data.
        offset: u32,
        /// Bytes.
        len: u32,
        /// It was the last.
        last: bool,
        /// The command has ended well, and no response follows.
        success: bool,
        /// Whether the data has the digest that came with it.
        digest_ok: bool,
    },
    /// An H2CData: its data has come to the buffer of the tag.
    WriteData {
        /// The command.
        cccid: u16,
        /// The R2T's tag.
        ttag: u16,
        /// Where in the command's data.
        offset: u32,
        /// Bytes.
        len: u32,
        /// It was the last of the R2T.
        last: bool,
        /// Whether the data has the digest that came with it.
        digest_ok: bool,
    },
    /// The controller is ready for data.
    R2t {
        /// The command.
        cccid: u16,
        /// What H2CData has to name.
        ttag: u16,
        /// Where in the command's data.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// A buffer of [`Transport::expect`]: all that was awaited has come, or it was asked for.
    Buffer {
        /// Its tag.
        tag: u16,
        /// The memory.
        buffer: AlignedBuf,
    },
    /// Nothing more comes, and nothing can be sent. The socket is the caller's to close.
    Ended(Ended),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// TCP, or TLS, ended it.
    #[error("{0}")]
    Lost(SocketError),
    /// The peer said neither ICReq nor ICResp.
    #[error("the peer does not speak NVMe/TCP: no answer in time")]
    Silent,
    /// The peer sent a terminate request.
    #[error("terminated by the peer: {0}")]
    TerminatedByPeer(Fault),
    /// We did.
    #[error("terminated: {0}")]
    Terminated(Fault),
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// An initiator whose connection is not open yet.
    Connecting,
    /// The peer has to speak.
    Setup {
        until: Instant,
    },
    /// Commands and their answers.
    Open,
    Ended,
}

/// Which end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Initiator(Initiate),
    Target(Serve),
}

/// One end of an NVMe/TCP connection.
pub struct Transport {
    socket: SocketId,
    crypto: Arc<dyn CryptoProvider>,
    role: Role,
    phase: Phase,
    negotiated: Option<Negotiated>,
    /// Rules of the PDUs that go out.
    send: Rules,
    receiver: Receiver,
    buffers: Buffers,
    /// What was not yet taken.
    came: VecDeque<Incoming>,
    /// The mark of what was written last.
    written: u64,
    /// The command whose read data ended the connection.
    culprit: Option<u16>,
    /// The time of the call under way.
    now: Instant,
}

impl core::fmt::Debug for Transport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Transport").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Transport {
    /// The initiator's end of a socket that is being connected: ICReq is sent once it is.
    #[must_use]
    pub fn initiate(socket: SocketId, crypto: Arc<dyn CryptoProvider>, params: Initiate) -> Self {
        Self::new(socket, crypto, Role::Initiator(params))
    }

    /// The target's end of a socket that was accepted.
    #[must_use]
    pub fn serve(socket: SocketId, crypto: Arc<dyn CryptoProvider>, params: Serve) -> Self {
        Self::new(socket, crypto, Role::Target(params))
    }

    fn new(socket: SocketId, crypto: Arc<dyn CryptoProvider>, role: Role) -> Self {
        Self {
            socket,
            crypto,
            role,
            phase: Phase::Connecting,
            negotiated: None,
            send: Rules::NONE,
            receiver: Receiver::new(),
            buffers: Buffers::default(),
            came: VecDeque::new(),
            culprit: None,
            written: 0,
            now: Instant::ZERO,
        }
    }

    /// The socket.
    #[must_use]
    pub const fn socket(&self) -> SocketId {
        self.socket
    }

    /// What was agreed on, once it was.
    #[must_use]
    pub const fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// What came next. To be called until there is nothing more, after each notice about the
    /// socket, and at [`Self::poll_timeout`].
    pub fn poll(&mut self, now: Instant, host: &mut Host) -> Option<Incoming> {
        self.now = now;
        if self.came.is_empty() {
            self.begin(host);
            self.take_back(host);
            while self.came.is_empty() && self.phase != Phase::Ended && self.step(host) {}
            // The peer's FIN may have come with bytes that were all taken and made nothing.
            if self.came.is_empty() {
                self.note_end(host);
            }
            self.answer_device(host);
            if self.phase == Phase::Ended {
                self.discard(host);
            }
        }
        self.came.pop_front()
    }

    /// When [`Self::poll`] has to be called again, whatever happens.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Setup { until } => Some(until),
            _ => None,
        }
    }

    /// Registers a buffer for data of the command `cccid` that comes under `tag` (an initiator's
    /// tag is the command's identifier) and begins at `offset` of the command's data: `len` bytes,
    /// until all of them have come. To be called before the command, or the R2T, is sent. Returns
    /// the buffer if the tag is in use or the buffer is shorter than `len`.
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

    /// Returns how many bytes have come under a tag, whether or not the device still has the
    /// buffer; none if nothing is awaited under it.
    #[must_use]
    pub fn received(&self, tag: u16) -> Option<u32> {
        self.buffers.get(tag).map(|awaited| awaited.received)
    }

    /// Returns the command, as the peer named it, whose read data was at fault for the end of the
    /// connection; none if another PDU was.
    #[must_use]
    pub const fn culprit(&self) -> Option<u16> {
        self.culprit
    }

    /// Gives a buffer up, whatever has come of it: [`Incoming::Buffer`] follows. Data that still
    /// comes under the tag is an error then.
    pub fn reclaim(&mut self, host: &mut Host, tag: u16) {
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        awaited.unwanted = true;
        if awaited.ask() {
            reclaim(host, self.socket, tag);
        }
        self.settle(host, tag);
    }

    /// The connection is given up, by no fault of the peer's: nothing more is taken of what comes,
    /// and nothing is said of it. Buffers still come back.
    pub fn give_up(&mut self) {
        self.phase = Phase::Ended;
    }

    /// How far the peer's TCP has acknowledged: everything whose mark, as the `send` functions give
    /// it, is not above.
    #[must_use]
    pub fn acknowledged(&self, host: &Host) -> u64 {
        host.pdus_acknowledged(self.socket)
    }

    /// Speaks first, where it is ours to, and looks whether the connection still stands.
    fn begin(&mut self, host: &mut Host) {
        if self.phase == Phase::Ended {
            return;
        }
        let ready = host.readiness(self.socket);
        match self.phase {
            Phase::Connecting if ready.writable || ready.readable => {
                self.phase = Phase::Setup { until: self.now + SETUP_TIMEOUT };
                if let Role::Initiator(params) = self.role {
                    self.send_setup_request(host, params);
                }
            }
            Phase::Setup { until } if self.now >= until => return self.end(Ended::Silent),
            _ => {}
        }
        self.note_end(host);
    }

    /// Ends if the peer has closed or the connection is lost; what came before that is read first.
    fn note_end(&mut self, host: &Host) {
        let ready = host.readiness(self.socket);
        if !ready.readable && host.peek(self.socket).is_empty() {
            if let Some(error) = ready.error {
                self.end(Ended::Lost(error));
            } else if ready.peer_closed {
                self.end(Ended::Closed);
            }
        }
    }

    /// What still comes is nobody's. It is taken nevertheless: a socket that is closed with bytes
    /// unread resets the connection, and what we said last would not arrive (RFC 2525 section
    /// 2.17).
    fn discard(&self, host: &mut Host) {
        loop {
            let len = host.peek(self.socket).len();
            if len == 0 {
                return;
            }
            host.consume(self.socket, len);
        }
    }

    fn end(&mut self, how: Ended) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            self.came.push_back(Incoming::Ended(how));
        }
    }

    /// Both ends know how to go on: the device may follow what comes from here.
    fn open(&mut self, host: &mut Host, negotiated: Negotiated, ours: u8) {
        let Negotiated { header_digest, data_digest, pda, .. } = negotiated;
        self.negotiated = Some(negotiated);
        self.send = Rules { header_digest, data_digest, pda, plen_max: u32::MAX };
        let plen_max = receive::PLEN_MAX;
        self.receiver.rules = Rules { header_digest, data_digest, pda: ours, plen_max };
        self.phase = Phase::Open;
        let _followed = self.receiver.attach(self.now, host, self.socket);
        if data_digest {
            let (now, crypto) = (self.now, Arc::clone(&self.crypto));
            // What the device does not do the host does: the counters say which.
            let _ = host.nvme_tx_context(now, self.socket, self.receiver.state(), crypto);
        }
        self.came.push_back(Incoming::Ready);
    }

    /// Takes the buffers that the device has given back.
    fn take_back(&mut self, host: &mut Host) {
        while let Some(done) = self.port(host).and_then(Port::poll_buffer) {
            let tag = done.tag;
            let Some(awaited) = self.buffers.get_mut(tag).filter(|a| a.is_lent_as(done.id)) else {
                continue;
            };
            let asked = awaited.is_coming();
            awaited.give_back(done.buffer);
            self.settle(host, tag);
            // It was not asked for: its context is gone, and there may be another.
            if !asked && host.nvme_streams().1.nvme_context(self.socket) != Some(done.context) {
                self.lend_again(host, tag);
            }
        }
    }

    /// A buffer's state has changed: what waited for it is done.
    fn settle(&mut self, host: &mut Host, tag: u16) {
        self.check_digests(host, tag);
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        if !awaited.is_whole() && !awaited.unwanted {
            return;
        }
        if !awaited.is_here() && !awaited.was_placed() && awaited.ask() {
            reclaim(host, self.socket, tag);
        }
        if let Some(buffer) = self.buffers.take(tag) {
            self.came.push_back(Incoming::Buffer { tag, buffer });
        }
    }

    /// Answers the device's question, once it is known.
    fn answer_device(&mut self, host: &mut Host) {
        let Some(asked) = self.port(host).and_then(|port| port.asked()) else { return };
        if let Some(begins) = self.receiver.begins(asked) {
            let (out, streams) = host.nvme_streams();
            if let Some(port) = streams.nvme_port(self.socket) {
                port.answer(out, asked, begins);
            }
        }
    }

    /// Returns the device's part in the connection.
    fn port<'a>(&self, host: &'a mut Host) -> Option<&'a mut Port> {
        host.nvme_streams().1.nvme_port(self.socket)
    }
}

/// Asks the device for a buffer. If its context is gone the buffer is on its way already.
fn reclaim(host: &mut Host, socket: SocketId, tag: u16) {
    let (out, streams) = host.nvme_streams();
    if let Some(port) = streams.nvme_port(socket) {
        port.reclaim(out, tag);
    }
}
