//! Operations: descriptors from host to device. Names follow the papers and the Linux kernel.

use alloc::boxed::Box;

use base::SeqNum;
use bytes::Bytes;
use smallvec::SmallVec;
use wire::Tuple;

use crate::attach::AddressClaim;
use crate::count::CountRequest;
use crate::decompress::DecompressRequest;
use crate::l5o::{L5oContent, L5oCreate, L5oId, RecordRange};
use crate::link::RxFrame;
use crate::nvme_tcp::{DdpSetup, PduRange};
use crate::quic::{QuicAdd, QuicId, QuicProtect, QuicRekey, QuicRouteChange};
use crate::setup::{ListenId, SetupListen};
use crate::splice::{Splice, SpliceId};
use crate::steering::{SegmentHandOver, SteeredFrame};
use crate::teardown::Teardown;

/// The host's number for a connection. The device only compares it and repeats it in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

impl FlowId {
    /// Transmits that belong to no connection (ARP, ICMP, stateless resets). They are not ordered
    /// against each other or against other flows.
    pub const NONE: Self = Self(u64::MAX);
}

/// The host's number for an open file, chosen by the host (IO-TCP section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// An operation, host to device.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every operation is a transmit; a box would allocate on the hot path \
              (allow and not expect: the clippy of Rust 1.85 finds it small)"
)]
pub enum Op {
    /// Completes headers, segments (TSO) and sends a payload; IO-TCP's `SEND` if a part is a file
    /// extent.
    Transmit(Transmit),
    /// Drops the transmits of a flow that are still waiting in the device; the host will send their
    /// bytes in another way. Each echo reports [`crate::TransmitOutcome::Dropped`]. A canceled
    /// transmit takes no hold on file buffers, so a [`Op::FileAck`] after this operation releases
    /// them for good.
    Cancel {
        /// The flow.
        flow: FlowId,
    },
    /// Opens a file beneath the device's root (IO-TCP's `OPEN`). Answered by
    /// [`crate::Event::FileOpened`].
    FileOpen {
        /// The host's number for the file from now on.
        file: FileId,
        /// Path below the root, separated by `/`, without a leading slash; any bytes but NUL.
        path: Box<[u8]>,
        /// Purpose of the open.
        access: FileAccess,
    },
    /// Invalidates the device's copy of a range that the host has written, in a file opened as
    /// [`FileAccess::Namespace`]. Sent before the first transmit of the new bytes, and only once no
    /// byte of the range is unacknowledged.
    FileInvalidate {
        /// The file.
        file: FileId,
        /// Offset of the range in the file, in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// Closes a file (IO-TCP's `CLOS`). Transmits already queued still complete.
    FileClose {
        /// The file.
        file: FileId,
    },
    /// Releases the buffers of bytes that a peer has acknowledged or that will never be sent
    /// (IO-TCP's `ACKD`).
    FileAck(FileExtent),
    /// Creates an offload context: `l5o_create`.
    L5oCreate(Box<L5oCreate>),
    /// Destroys a context: `l5o_destroy`. Transmits already queued still complete.
    L5oDestroy {
        /// The context.
        context: L5oId,
    },
    /// `l5o_resync_rx_resp`: answers a resync request, or sends an unsolicited hint
    /// ([`crate::l5o::ResyncMode::NextHint`]).
    L5oResyncRxResp {
        /// The context.
        context: L5oId,
        /// Sequence number that was asked for, or at which the hint says that a message begins.
        tcpsn: SeqNum,
        /// Number of the message that begins at `tcpsn`, or `None` if no message begins there.
        number: Option<u64>,
    },
    /// `ulp_ddp_ops::setup`: registers a buffer for data that the host is about to request. The
    /// request follows this operation in the ring.
    DdpSetup(Box<DdpSetup>),
    /// `ulp_ddp_ops::teardown`: takes a registered buffer back. Not answered if the device has
    /// returned the buffer already.
    DdpTeardown {
        /// The receive context.
        context: L5oId,
        /// The buffer's tag.
        tag: u16,
    },
    /// Starts answering the SYNs of a port. Answered by [`crate::Event::ListenRefused`] if the
    /// device refuses, else not at all.
    Listen(Box<SetupListen>),
    /// Stops answering the SYNs of a port. SYN cookies already sent stay valid until they expire.
    Unlisten {
        /// The listener.
        listener: ListenId,
    },
    /// Hands over a connection that the application has closed.
    Teardown(Box<Teardown>),
    /// Returns a received frame to the device: it arrived before the device had taken the
    /// [`Op::Teardown`] of its connection, and the device has taken it by now
    /// ([`SteeringReason::TornDown`](crate::steering::SteeringReason::TornDown)); or the host has
    /// reassembled it from fragments, and the device processes it like one from the link.
    Return(SteeredFrame),
    /// Hands a segment over to the device of another queue, whose host may have its connection. Not
    /// answered.
    HandOver(SegmentHandOver),
    /// Releases entries of the flow steering that were moved away from this queue
    /// ([`crate::steering::FlowSteering::release`]): the host has no connections in them. The
    /// device releases those in which it has none either. Not answered.
    ReleaseEntries(Box<[usize]>),
    /// Takes over two connections and relays between them. Answered by [`crate::Event::Spliced`].
    Splice(Box<Splice>),
    /// Starts relaying. Carries the frames that the host received before [`crate::Event::Spliced`]
    /// and did not acknowledge; the device relays these first.
    SpliceStart {
        /// The splice.
        id: SpliceId,
        /// The frames as received, in order.
        packets: Box<[RxFrame]>,
    },
    /// Ends a splice: the device resets both connections. If `SpliceStart` was not sent yet, the
    /// device only forgets the splice and the connections stay with the host, unchanged.
    Unsplice {
        /// The splice.
        id: SpliceId,
    },
    /// Offloads packet protection of one direction of a QUIC connection. Answered by
    /// [`crate::Event::QuicStatus`] if the device refuses, else not at all.
    QuicAdd(Box<QuicAdd>),
    /// Installs the next generation of keys.
    QuicRekey(Box<QuicRekey>),
    /// Adds or removes a route (a connection ID or a tuple) to a receive entry.
    QuicRoute(Box<QuicRouteChange>),
    /// Removes one direction of a QUIC connection. Transmits already queued still complete; packets
    /// held for reordering are delivered.
    QuicRemove {
        /// The entry.
        quic: QuicId,
    },
    /// Starts, reads or stops counting the frames of a flow. Answered by
    /// [`crate::Event::FlowCounted`], except for a successful start.
    CountFlow {
        /// The flow, whether host or device has the connection.
        tuple: Box<Tuple>,
        /// The request.
        request: CountRequest,
    },
    /// Decompresses content. Answered by [`crate::Event::Decompressed`].
    Decompress(Box<DecompressRequest>),
    /// Asks a device that several programs share for further addresses and ports, as a virtual
    /// function asks its physical function for another filter. The claim has the former addresses
    /// and ranges again, and ports of the same kind: all, or listed ones. Answered by
    /// [`crate::Event::ClaimExtended`].
    ExtendClaim(Box<AddressClaim>),
    /// Prepares for the end of the host: resets every connection of this queue that the device has
    /// taken over, and reports [`crate::Event::Quiesced`] once the link has taken every frame of
    /// the preceding operations. Answers to preceding operations come first, except
    /// [`crate::Event::TeardownDone`], which reports in sums and may come later.
    Quiesce,
}

/// Purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum FileAccess {
    /// For sending its present content: if the file changes, transmits of it fail.
    #[default]
    Content,
    /// As the storage of an NVMe namespace, which the host writes meanwhile: the version has no
    /// meaning. Block devices are accepted too.
    Namespace,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileExtent {
    /// The file.
    pub file: FileId,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A source of payload. The parts of a transmit follow each other in the stream.
#[derive(Clone, Debug)]
pub enum TransmitPart {
    /// Bytes in the host's memory, shared and not copied.
    Host(Bytes),
    /// Bytes of a file, read by the device.
    File(FileExtent),
    /// Messages (TLS records) that the device builds from content and encrypts.
    Records(Box<RecordRange>),
    /// A range of an NVMe/TCP PDU whose data digest the device fills in.
    Pdu(Box<PduRange>),
}

impl TransmitPart {
    /// Returns the number of payload bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            // A transmit's payload is bounded by `Capabilities::transmit_bytes_max`, far below 4
            // GiB.
            Self::Host(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::File(extent) => extent.len,
            Self::Records(sealed) => sealed.len,
            Self::Pdu(pdu) => pdu.len,
        }
    }

    /// Returns whether the part has no payload bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range of a file that the device reads for this part.
    #[must_use]
    pub fn extent(&self) -> Option<&FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Records(sealed) => match &sealed.content {
                L5oContent::File(extent) => Some(extent),
                L5oContent::Pdu(pdu) => pdu.data.extent(),
                L5oContent::Host(_) => None,
            },
            Self::Pdu(pdu) => pdu.data.extent(),
            Self::Host(_) => None,
        }
    }

    /// Returns how many leading bytes of [`Self::extent`] are a prefix and not payload of this
    /// part: they precede it in its message, were sent before, and their buffers are already held.
    #[must_use]
    pub fn extent_prefix(&self) -> u32 {
        match self {
            Self::Host(_) | Self::File(_) => 0,
            Self::Records(sealed) => match &sealed.content {
                L5oContent::Pdu(pdu) => pdu.data_before(sealed.prefix),
                L5oContent::Host(_) | L5oContent::File(_) => sealed.prefix,
            },
            Self::Pdu(pdu) => pdu.prefix,
        }
    }

    /// Returns whether the part brings bytes that precede it in its message.
    #[must_use]
    pub fn has_prefix(&self) -> bool {
        match self {
            Self::Host(_) | Self::File(_) => false,
            Self::Records(sealed) => sealed.prefix > 0 || self.extent_prefix() > 0,
            Self::Pdu(pdu) => pdu.prefix > 0,
        }
    }

    /// Returns a mutable reference to [`Self::extent`].
    pub fn extent_mut(&mut self) -> Option<&mut FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Records(sealed) => match &mut sealed.content {
                L5oContent::File(extent) => Some(extent),
                L5oContent::Pdu(pdu) => pdu.data.extent_mut(),
                L5oContent::Host(_) => None,
            },
            Self::Pdu(pdu) => pdu.data.extent_mut(),
            Self::Host(_) => None,
        }
    }
}

/// Payload of a transmit. The head of a response and the start of its body fit without allocation.
pub type TransmitParts = SmallVec<[TransmitPart; 2]>;

/// A packet to complete and send, or with a segment size a run of packets.
#[derive(Debug)]
pub struct Transmit {
    /// The connection. Transmits of one flow leave in the order of the ring, no matter how long
    /// each waits for a disk.
    pub flow: FlowId,
    /// Ethernet, IP and transport headers of the first packet, with checksums zero.
    pub header: PacketHeader,
    /// Payload bytes of each packet but the last; zero if the transmit is one packet.
    pub segment_size: u16,
    /// Payload, in order.
    pub parts: TransmitParts,
    /// Position of the TCP timestamp, if the device is to advance TSval by the time that the
    /// transmit waits for a disk (IO-TCP section 3.5).
    pub timestamp: Option<TsvalPosition>,
    /// Tag of a requested [`crate::TransmitDone`] (IO-TCP's echo), or `None` for no echo.
    pub echo: Option<u32>,
    /// True if the bytes were sent before: the buffers of their files are already held and are not
    /// held again.
    pub retransmission: bool,
    /// Set if the payload is a batch of QUIC datagrams to encrypt, each of `segment_size` bytes but
    /// the last.
    pub quic: Option<Box<QuicProtect>>,
}

impl Transmit {
    /// Returns the number of payload bytes of all parts.
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        self.parts.iter().map(TransmitPart::len).fold(0, u32::saturating_add)
    }
}

/// Position of TSval in the header, and the time below its resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsvalPosition {
    /// Offset of TSval in the header.
    pub offset: u8,
    /// Microseconds (0 to 999) that the host's clock had advanced beyond TSval when the header was
    /// written.
    pub sub_ms_us: u16,
}

/// Largest header: Ethernet 14, VLAN 4, IPv6 40 and TCP 60 bytes, rounded up.
const HEADER_BYTES_MAX: usize = 120;

/// Packet headers, stored inline so that an operation needs no allocation.
#[derive(Clone)]
pub struct PacketHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
    l3: u8,
    l4: u8,
}

/// Headers longer than [`PacketHeader::CAPACITY`], or offsets that do not lie in them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderTooLong;

impl PacketHeader {
    /// Size of the storage in bytes.
    pub const CAPACITY: usize = HEADER_BYTES_MAX;

    /// Returns a header without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { bytes: [0; HEADER_BYTES_MAX], len: 0, l3: 0, l4: 0 }
    }

    /// Returns a header of `len` zero bytes with the network header at `l3` and the transport
    /// header at `l4`.
    ///
    /// # Errors
    /// `HeaderTooLong` if `len` exceeds [`Self::CAPACITY`] or not `l3 <= l4 <= len`.
    pub const fn zeroed(len: usize, l3: usize, l4: usize) -> Result<Self, HeaderTooLong> {
        if len > HEADER_BYTES_MAX || l3 > l4 || l4 > len {
            return Err(HeaderTooLong);
        }
        #[expect(clippy::cast_possible_truncation, reason = "all three are at most 120")]
        Ok(Self { bytes: [0; HEADER_BYTES_MAX], len: len as u8, l3: l3 as u8, l4: l4 as u8 })
    }

    /// Returns a header that is a copy of `bytes`.
    ///
    /// # Errors
    /// As [`Self::zeroed`].
    pub fn from_bytes(bytes: &[u8], l3: usize, l4: usize) -> Result<Self, HeaderTooLong> {
        let mut header = Self::zeroed(bytes.len(), l3, l4)?;
        header.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(header)
    }

    /// Describes headers that lie at the front of a frame's payload, with the network header at
    /// `l3` and the transport header at `l4`. It has no bytes itself.
    #[must_use]
    pub const fn in_payload(l3: u8, l4: u8) -> Self {
        Self { bytes: [0; HEADER_BYTES_MAX], len: 0, l3, l4 }
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the header's bytes for modification.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }

    /// Returns the offset of the network header.
    #[must_use]
    pub const fn l3(&self) -> usize {
        self.l3 as usize
    }

    /// Returns the offset of the transport header.
    #[must_use]
    pub const fn l4(&self) -> usize {
        self.l4 as usize
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the headers lie at the front of the payload.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl core::fmt::Debug for PacketHeader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Header({} bytes)", self.len)
    }
}
