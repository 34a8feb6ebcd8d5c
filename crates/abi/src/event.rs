//! Events: descriptors from device to host.

use alloc::boxed::Box;

use base::Duration;
use wire::Tuple;

use crate::attach::AttachRefusal;
use crate::count::FlowCounts;
use crate::decompress::Decompressed;
use crate::l5o::{L5oId, L5oRefused, ResyncRequest, RxMetadata};
use crate::nvme_tcp::DdpTeardownDone;
use crate::quic::{self, QuicStatus};
use crate::setup::{HandshakeSegment, ListenId};
use crate::splice::{SpliceClosed, SpliceId};
use crate::steering::SteeringReason;
use crate::teardown::{TeardownDone, TeardownRefused};
use crate::{FileId, FlowId, PacketBuf, Refusal};

/// An event, device to host.
#[derive(Debug)]
pub enum Event {
    /// A frame was received.
    Received(ReceivedFrame),
    /// The echo of a transmit that asked for one: its first byte has left the device, or never
    /// will.
    TransmitDone(TransmitDone),
    /// The answer to [`crate::Op::FileOpen`].
    FileOpened(FileOpened),
    /// A read found that an open file has changed since [`FileOpened`]. The device sends nothing
    /// more of it; a host that caches the handle has to open the file again.
    FileChanged(FileId),
    /// A receive context lost synchronization and asks for the position of a message
    /// (`l5o_resync_rx_req`). Answered by [`crate::Op::L5oResyncRxResp`].
    L5oResyncRxReq {
        /// The context.
        context: L5oId,
        /// Its connection.
        flow: FlowId,
        /// The question.
        request: ResyncRequest,
    },
    /// The device refused an [`crate::Op::L5oCreate`]. A successful one is not answered.
    L5oRefused(L5oRefused),
    /// The device returns a registered buffer to the host.
    DdpTeardownDone(Box<DdpTeardownDone>),
    /// The device refused an [`crate::Op::Listen`]. A successful one is not answered.
    ListenRefused {
        /// The listener.
        listener: ListenId,
        /// The reason.
        reason: Refusal,
    },
    /// Connections that were handed to the device have ended.
    TeardownDone(TeardownDone),
    /// The device refused an [`crate::Op::Teardown`].
    TeardownRefused(TeardownRefused),
    /// The answer to an [`crate::Op::Splice`]. If `Ok`, no further frame of either connection
    /// follows and the device waits for [`crate::Op::SpliceStart`]; if `Err`, nothing has changed.
    Spliced {
        /// The splice.
        id: SpliceId,
        /// Success, or the reason for the refusal.
        result: Result<(), Refusal>,
    },
    /// A splice has ended.
    SpliceClosed(Box<SpliceClosed>),
    /// An operation on a QUIC connection failed.
    QuicStatus(QuicStatus),
    /// The answer to an [`crate::Op::CountFlow`].
    FlowCounted {
        /// The flow.
        tuple: Box<Tuple>,
        /// Counts since the start, or why the flow is not counted.
        result: Result<FlowCounts, Refusal>,
    },
    /// The answer to an [`crate::Op::Decompress`]. It survives a reset of the device, at which a
    /// job that has not run is refused.
    Decompressed(Box<Decompressed>),
    /// The answer to [`crate::Op::ExtendClaim`].
    ClaimExtended {
        /// Success, or the reason for which the program has its former claim.
        result: Result<(), AttachRefusal>,
    },
    /// The device's load has crossed one of its thresholds.
    Load(DeviceLoad),
    /// The link has another MTU, or may have neighbors with other link addresses: it is up again,
    /// or its interface has another address.
    LinkChanged {
        /// MTU in bytes. Larger packets are still taken up to the largest MTU that was announced,
        /// and may be lost.
        mtu: u16,
    },
    /// The answer to [`crate::Op::Quiesce`]: the device has nothing left to send, from any queue.
    Quiesced,
    /// The device lost all its state. The host continues in software or installs its offloads
    /// again.
    Reset,
}

impl Event {
    /// Returns true if this is the echo of a transmit.
    #[must_use]
    pub const fn is_echo(&self) -> bool {
        matches!(self, Self::TransmitDone(_))
    }
}

/// A received frame, as parsed by the device. Both the device and the host check its offsets.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// The frame, unmodified except for what `metadata` and `quic` report.
    pub packet: PacketBuf,
    /// Result of the transport checksum verification.
    pub checksum: Checksum,
    /// RSS hash of the tuple, or of the connection ID with [`crate::quic::QuicSteering`]. Zero for
    /// frames that are neither TCP nor UDP, and if there is only one queue.
    pub flow_hash: u32,
    /// Payload bytes of each packet that was merged into this frame; zero for a single packet.
    pub segment_size: u16,
    /// Results of the device's layer-5 contexts on the payload.
    pub metadata: RxMetadata,
    /// Set on the first segments of a connection that the device set up. Segments of a connection
    /// on which the host has sent data are not marked.
    pub handshake: Option<HandshakeSegment>,
    /// Decryption results, if the frame holds QUIC datagrams that the device decrypted.
    pub quic: Option<Box<quic::QuicDecrypted>>,
    /// Number of [`crate::Op::Teardown`]s of this queue that the device had taken when the frame
    /// arrived (modulo 2^32). The host learns from it which handed-over connections the device did
    /// not know yet.
    pub teardowns_taken: u32,
    /// Why another queue's device, or the host itself, handed the frame over, if one did.
    pub steered: SteeringReason,
}

impl ReceivedFrame {
    /// Creates the event of a frame without offload results.
    #[must_use]
    pub const fn new(
        packet: PacketBuf,
        checksum: Checksum,
        flow_hash: u32,
        segment_size: u16,
    ) -> Self {
        Self {
            packet,
            checksum,
            flow_hash,
            segment_size,
            metadata: RxMetadata::EMPTY,
            handshake: None,
            quic: None,
            teardowns_taken: 0,
            steered: SteeringReason::Current,
        }
    }

    /// Takes the frame's buffer and leaves an empty one.
    #[must_use]
    pub fn take_packet(&mut self) -> PacketBuf {
        core::mem::replace(&mut self.packet, PacketBuf::empty())
    }
}

/// Load of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Share of time that the device is busy, in thousandths (0 to 1000).
    pub permille: u16,
    /// True if the load is too high: the host hands over no more connections until an event with
    /// `high` false.
    pub high: bool,
}

/// Result of the receive checksum offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Verified: the checksum is correct.
    Good,
    /// Never computed, because the sender is on the same machine: the field holds the sum of the
    /// pseudo-header only (virtio's `NEEDS_CSUM`). The data is as trustworthy as if verified, but a
    /// forwarder has to complete the checksum or leave that to the next link.
    Partial,
    /// Verified: the checksum is wrong.
    Bad,
    /// Not verified.
    Unchecked,
}

impl Checksum {
    /// Returns whether the packet's content may be trusted.
    #[must_use]
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Good | Self::Partial)
    }
}

/// Completion of a transmit that asked for an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitDone {
    /// The connection.
    pub flow: FlowId,
    /// Tag of the transmit.
    pub tag: u32,
    /// Time from the device's taking of the transmit until its first byte left: the wait for the
    /// disk.
    pub delay: Duration,
    /// Result of the transmit.
    pub outcome: TransmitOutcome,
}

/// Outcome of a transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitOutcome {
    /// Sent.
    Sent,
    /// Dropped: the transmit could not be completed, and no byte of it was sent. Transmits of the
    /// flow that were already queued behind it are dropped too, so that no data follows a hole.
    Dropped(FileFault),
}

/// The answer to [`crate::Op::FileOpen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOpened {
    /// The file.
    pub file: FileId,
    /// Metadata of the file, or why it could not be opened.
    pub result: Result<FileStat, FileFault>,
}

/// Metadata of an open file (IO-TCP's `offload_fstat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// Kind of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, in seconds since 1970-01-01 UTC.
    pub modified_s: i64,
    /// Nanoseconds of that time.
    pub modified_ns: u32,
    /// Identifier of the content. Returned by an open, it differs between any two contents (a hash
    /// of device, inode, size and time stamps), so equal versions mean equal bytes. Returned by a
    /// read, it equals that of the open as long as the bytes that the file had at the open are
    /// unchanged. A change of link count, mode or owner, or an append, does not change it.
    pub version: u64,
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file: the only kind that is read as [`crate::FileAccess::Content`].
    Regular,
    /// A block device; may serve as a namespace.
    Block,
    /// A directory.
    Directory,
    /// Any other kind: a character device, a FIFO, a socket.
    Other,
}

/// Errors of file operations, and reasons for which a transmit was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileFault {
    /// The file does not exist.
    NotFound,
    /// The operating system denied access, or the path leads out of the root.
    Denied,
    /// The path cannot be opened: it is too long, has a component that is not a directory, or
    /// loops.
    BadPath,
    /// I/O error of the disk.
    Io,
    /// The storage does not answer; it may do so later.
    Unavailable,
    /// The file has changed since it was opened: truncated, rewritten or replaced.
    Changed,
    /// The host named a file that is not open or a range outside of it, or its transmit is
    /// malformed.
    BadExtent,
    /// No space left on the disk.
    NoSpace,
    /// A file of this name exists already.
    Exists,
    /// An earlier transmit of the same flow was dropped.
    FlowFailed,
    /// The device refused the operation.
    Refused(Refusal),
}

impl core::fmt::Display for FileFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotFound => "no such file",
            Self::Denied => "permission denied",
            Self::BadPath => "bad path",
            Self::Io => "disk error",
            Self::Unavailable => "the storage does not answer",
            Self::Changed => "the file changed while it was being sent",
            Self::BadExtent => "no such file handle or range",
            Self::NoSpace => "no space left on the disk",
            Self::Exists => "the file exists already",
            Self::FlowFailed => "an earlier transmit of the connection failed",
            Self::Refused(why) => return write!(f, "refused: {why}"),
        })
    }
}
