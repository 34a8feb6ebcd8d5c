//! Operations: what the host asks of the device. Names follow the papers and the Linux kernel.

use alloc::boxed::Box;

use base::SeqNum;
use bytes::Bytes;
use smallvec::SmallVec;
use wire::Tuple;

use crate::count::CountRequest;
use crate::l5o::{Content, L5oCreate, L5oId, Sealed};
use crate::nvme_tcp::{DdpSetup, PduRange};
use crate::port::RxFrame;
use crate::quic::{Protect, QuicAdd, QuicId, QuicRekey, QuicRoute};
use crate::setup::{ListenId, SetupListen};
use crate::splice::{Splice, SpliceId};
use crate::teardown::Teardown;

/// The host's name for a connection. The device compares it and gives it back, and reads nothing
/// into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

impl FlowId {
    /// A transmit that belongs to no connection (ARP, ICMP, stateless resets): ordered against
    /// nothing.
    pub const NONE: Self = Self(u64::MAX);
}

/// The host's name for an open file. The host chooses it (IO-TCP section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// One operation, host to device.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every operation is a transmit; a box would allocate on the hot path \
              (allow and not expect: the clippy of Rust 1.85 finds it small)"
)]
pub enum Op {
    /// Complete, segment and send bytes: TSO, and IO-TCP's `SEND` where a part is a file extent.
    Transmit(Transmit),
    /// Drop the transmits of a flow that still wait: what they were to send is sent otherwise. Each
    /// is answered as dropped, and no byte of a file that is acknowledged after this is held again.
    Cancel {
        /// Which.
        flow: FlowId,
    },
    /// Open a file beneath the device's root (IO-TCP's `OPEN`). Answered by
    /// [`crate::Event::FileOpened`].
    FileOpen {
        /// The name that the host will use for it from now on.
        file: FileId,
        /// Path below the root, `/`-separated, without a leading slash; of any bytes but NUL.
        path: Box<[u8]>,
        /// What it is opened for.
        access: FileAccess,
    },
    /// The host has written to this range of a file that was opened as [`FileAccess::Namespace`]:
    /// what the device has of it is old. Sent before the first transmit of the new bytes, and not
    /// while a byte of the range is still unacknowledged.
    FileInvalidate {
        /// Which file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Forget a file (IO-TCP's `CLOS`). Transmits already queued still complete.
    FileClose {
        /// Which file.
        file: FileId,
    },
    /// These bytes of the file have reached a peer, or never will: their buffers may go (IO-TCP's
    /// `ACKD`).
    FileAck(FileExtent),
    /// `l5o_create`: make a context.
    L5oCreate(Box<L5oCreate>),
    /// `l5o_destroy`: forget a context. Transmits already queued still complete.
    L5oDestroy {
        /// Which.
        context: L5oId,
    },
    /// `l5o_resync_rx_resp`: the answer to a request, or, where the host speaks unasked, a hint.
    L5oResyncRxResp {
        /// Which.
        context: L5oId,
        /// Where the message begins that was asked for.
        tcpsn: SeqNum,
        /// Its number; none where no message begins there.
        number: Option<u64>,
    },
    /// `ulp_ddp_ops::setup`: a buffer for data that will be asked for. The request for it follows
    /// in the ring.
    DdpSetup(Box<DdpSetup>),
    /// `ulp_ddp_ops::teardown`: give a buffer back. Not answered where that was done before.
    DdpTeardown {
        /// The receive context.
        context: L5oId,
        /// The tag.
        tag: u16,
    },
    /// Answer the SYNs of a port. Answered by [`crate::Event::ListenRefused`] where the device will
    /// not.
    Listen(Box<SetupListen>),
    /// Answer the SYNs of a port no more. Cookies that are out still count.
    Unlisten {
        /// Which.
        listener: ListenId,
    },
    /// Take over a connection that the application has closed.
    Teardown(Box<Teardown>),
    /// A frame that came before the device had taken up the connection that it is of: it has, by
    /// now.
    Return(RxFrame),
    /// Take over two connections that become one. Answered by [`crate::Event::Spliced`].
    Splice(Box<Splice>),
    /// What came before [`crate::Event::Spliced`] and was not acknowledged, in order: relay these
    /// first, and begin.
    SpliceStart {
        /// Which.
        id: SpliceId,
        /// Frames as they came in, with what was known of them.
        packets: Box<[RxFrame]>,
    },
    /// End a splice: both connections are reset. One that has not begun by `SpliceStart` is only
    /// forgotten: its connections are the host's, as they were.
    Unsplice {
        /// Which.
        id: SpliceId,
    },
    /// Protect or open the packets of a QUIC connection. Answered by [`crate::Event::QuicStatus`]
    /// where the device will not.
    QuicAdd(Box<QuicAdd>),
    /// Its next generation of keys.
    QuicRekey(Box<QuicRekey>),
    /// A connection ID, or a tuple, more or less.
    QuicRoute(Box<QuicRoute>),
    /// Forget one direction. Transmits already queued still complete; packets that wait for others
    /// are delivered.
    QuicRemove {
        /// Which.
        quic: QuicId,
    },
    /// Count the frames of a flow, or tell what was counted. Answered by
    /// [`crate::Event::FlowCounted`], but for a start that is not refused.
    CountFlow {
        /// The flow, whether host or device has the connection.
        tuple: Box<Tuple>,
        /// The request.
        request: CountRequest,
    },
    /// The host is about to end: reset every connection that the device has of this queue, and
    /// tell when every frame of the operations before has been taken by the link. Answered by
    /// [`crate::Event::Quiesced`]; the answers to operations before it come first, but for
    /// [`crate::Event::TeardownDone`], which sums and may come later.
    Quiesce,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum FileAccess {
    /// To be sent as it is now: a change of it fails what is being sent.
    #[default]
    Content,
    /// As the memory of a namespace, which the host writes to meanwhile: its version means nothing.
    /// A block device may be one.
    Namespace,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileExtent {
    /// Which file.
    pub file: FileId,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Where some of a transmit's payload comes from. The parts of one transmit follow each other on
/// the wire.
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes in the host's memory, shared, not copied.
    Host(Bytes),
    /// Bytes that the device reads.
    File(FileExtent),
    /// Messages that the device makes out of content, and seals.
    Sealed(Box<Sealed>),
    /// A range of a PDU of NVMe/TCP, whose data digest the device fills in.
    Pdu(Box<PduRange>),
}

impl Part {
    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            // A transmit's payload is bounded by `Capabilities::transmit_bytes_max`, far below 4
            // GiB.
            Self::Host(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::File(extent) => extent.len,
            Self::Sealed(sealed) => sealed.len,
            Self::Pdu(pdu) => pdu.len,
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of a file that the device reads for it.
    #[must_use]
    pub fn extent(&self) -> Option<&FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Sealed(sealed) => match &sealed.content {
                Content::File(extent) => Some(extent),
                Content::Pdu(pdu) => pdu.data.extent(),
                Content::Host(_) => None,
            },
            Self::Pdu(pdu) => pdu.data.extent(),
            Self::Host(_) => None,
        }
    }

    /// How many bytes of [`Self::extent`], from its first, are not of the part itself: they precede
    /// it in its message, were sent before, and are held already.
    #[must_use]
    pub fn extent_prefix(&self) -> u32 {
        match self {
            Self::Host(_) | Self::File(_) => 0,
            Self::Sealed(sealed) => match &sealed.content {
                Content::Pdu(pdu) => pdu.data_before(sealed.prefix),
                Content::Host(_) | Content::File(_) => sealed.prefix,
            },
            Self::Pdu(pdu) => pdu.prefix,
        }
    }

    /// Whether something comes with the part that precedes it in its message.
    #[must_use]
    pub fn has_prefix(&self) -> bool {
        match self {
            Self::Host(_) | Self::File(_) => false,
            Self::Sealed(sealed) => sealed.prefix > 0 || self.extent_prefix() > 0,
            Self::Pdu(pdu) => pdu.prefix > 0,
        }
    }

    /// The same as [`Self::extent`], to change it.
    pub fn extent_mut(&mut self) -> Option<&mut FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Sealed(sealed) => match &mut sealed.content {
                Content::File(extent) => Some(extent),
                Content::Pdu(pdu) => pdu.data.extent_mut(),
                Content::Host(_) => None,
            },
            Self::Pdu(pdu) => pdu.data.extent_mut(),
            Self::Host(_) => None,
        }
    }
}

/// The payload of a transmit. A response's head and the start of its body fit without allocation.
pub type Parts = SmallVec<[Part; 2]>;

/// A packet, or with a segment size a run of packets, to be completed and sent.
#[derive(Debug)]
pub struct Transmit {
    /// The connection. Transmits of one flow leave in the order of the ring, whatever their disks
    /// do.
    pub flow: FlowId,
    /// Ethernet, IP and TCP headers of the first packet, checksums left zero.
    pub header: Header,
    /// Payload bytes of each packet but the last; zero where the transmit is one packet.
    pub segment_size: u16,
    /// Payload, in order.
    pub parts: Parts,
    /// Where the TCP timestamp stands, if the device shall advance it by the time that the transmit
    /// waited for a disk (IO-TCP section 3.5).
    pub timestamp: Option<TsOption>,
    /// Ask for [`crate::TransmitDone`] with this tag (IO-TCP's echo).
    pub echo: Option<u32>,
    /// These bytes were sent before: their buffers are already held, so hold them no second time.
    pub retransmission: bool,
    /// A batch of QUIC datagrams, each of `segment_size` bytes but the last, to be sealed.
    pub protect: Option<Box<Protect>>,
}

impl Transmit {
    /// Payload bytes over all parts.
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        self.parts.iter().map(Part::len).fold(0, u32::saturating_add)
    }
}

/// The place and sub-millisecond part of a TCP timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsOption {
    /// Offset of TSval in the header.
    pub offset: u8,
    /// Microseconds (0..1000) by which the host's clock was past TSval when it wrote the header.
    pub past_us: u16,
}

/// Ethernet to TCP: 14 + 4 (VLAN) + 40 (IPv6) + 60, rounded up.
const HEADER_BYTES_MAX: usize = 120;

/// Packet headers, inline so that an operation needs no allocation.
#[derive(Clone)]
pub struct Header {
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
    l3: u8,
    l4: u8,
}

/// The headers do not fit: they are longer than any this stack builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTooLong;

impl Header {
    /// Room for headers.
    pub const CAPACITY: usize = HEADER_BYTES_MAX;

    /// A header of `len` zero bytes whose network and transport headers begin at `l3` and `l4`.
    ///
    /// # Errors
    /// `HeaderTooLong` where `len` exceeds [`Self::CAPACITY`] or the offsets do not lie in it in
    /// order.
    pub const fn zeroed(len: usize, l3: usize, l4: usize) -> Result<Self, HeaderTooLong> {
        if len > HEADER_BYTES_MAX || l3 > l4 || l4 > len {
            return Err(HeaderTooLong);
        }
        #[expect(clippy::cast_possible_truncation, reason = "all three are at most 120")]
        Ok(Self { bytes: [0; HEADER_BYTES_MAX], len: len as u8, l3: l3 as u8, l4: l4 as u8 })
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// As [`Self::zeroed`].
    pub fn from_bytes(bytes: &[u8], l3: usize, l4: usize) -> Result<Self, HeaderTooLong> {
        let mut header = Self::zeroed(bytes.len(), l3, l4)?;
        header.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(header)
    }

    /// The header's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The header's bytes, to change them.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    /// Where the network header begins.
    #[must_use]
    pub const fn l3(&self) -> usize {
        self.l3 as usize
    }

    /// Where the transport header begins.
    #[must_use]
    pub const fn l4(&self) -> usize {
        self.l4 as usize
    }

    /// Bytes in it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header without bytes is not a thing")]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
}

impl core::fmt::Debug for Header {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Header({} bytes)", self.len)
    }
}
