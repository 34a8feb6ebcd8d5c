//! Events: what the device tells the host.

use alloc::boxed::Box;

use base::Duration;
use wire::Tuple;

use crate::count::FlowCounts;
use crate::l5o::{L5oId, L5oRefused, ResyncRequest, RxMetadata};
use crate::nvme_tcp::DdpTeardownDone;
use crate::quic::{self, QuicStatus};
use crate::setup::{Established, ListenId};
use crate::splice::{SpliceClosed, SpliceId};
use crate::teardown::{TeardownDone, TeardownRefused};
use crate::{FileId, FlowId, PacketBuf, Refusal};

/// One event, device to host.
#[derive(Debug)]
pub enum Event {
    /// A frame came in.
    Received(Received),
    /// The echo: the first byte of a transmit that asked for it has left, or never will.
    TransmitDone(TransmitDone),
    /// The answer to [`crate::Op::FileOpen`].
    FileOpened(FileOpened),
    /// A read found that an open file is no longer what [`FileOpened`] said: nothing of it is sent
    /// any more. Who keeps the handle for later has to open the file again.
    FileChanged(FileId),
    /// A context lost its place in what comes and asks where it is (`l5o_resync_rx_req`). Answered
    /// by [`crate::Op::L5oResyncRxResp`].
    L5oResyncRxReq {
        /// Which.
        context: L5oId,
        /// Of which connection.
        flow: FlowId,
        /// What it asks.
        request: ResyncRequest,
    },
    /// The answer to an [`crate::Op::L5oCreate`] that failed; one that did not is not answered.
    L5oRefused(L5oRefused),
    /// A buffer for received data is the host's again.
    DdpTeardownDone(Box<DdpTeardownDone>),
    /// The answer to an [`crate::Op::Listen`] that failed; one that did not is not answered.
    ListenRefused {
        /// Which.
        listener: ListenId,
        /// Why.
        why: Refusal,
    },
    /// Connections that the device was handed have ended.
    TeardownDone(TeardownDone),
    /// The answer to an [`crate::Op::Teardown`] that failed.
    TeardownRefused(TeardownRefused),
    /// The answer to an [`crate::Op::Splice`]: no frame of either connection comes any more, and
    /// the device waits for [`crate::Op::SpliceStart`]; or it will not, and nothing has changed.
    Spliced {
        /// Which.
        id: SpliceId,
        /// Why not.
        result: Result<(), Refusal>,
    },
    /// A splice has ended.
    SpliceClosed(Box<SpliceClosed>),
    /// Something that was asked for a QUIC connection was not done.
    QuicStatus(QuicStatus),
    /// The answer to an [`crate::Op::CountFlow`].
    FlowCounted {
        /// The flow.
        tuple: Box<Tuple>,
        /// What passed since it began to be counted, or why it is not.
        result: Result<FlowCounts, Refusal>,
    },
    /// How busy the device is, said when that changes much.
    Load(Load),
    /// The answer to [`crate::Op::Quiesce`]: the device has nothing left to send, of any queue.
    Quiesced,
    /// The device lost all its state. The host goes on in software or installs everything again.
    Reset,
}

impl Event {
    /// Returns true if this is the echo of a transmit.
    #[must_use]
    pub const fn is_echo(&self) -> bool {
        matches!(self, Self::TransmitDone(_))
    }
}

/// A received frame, as the device parsed it. Offsets are checked by the device and by the host
/// again.
#[derive(Debug)]
pub struct Received {
    /// The frame, exactly as it came but for what `metadata` says.
    pub packet: PacketBuf,
    /// What the device knows about the transport checksum.
    pub checksum: Checksum,
    /// RSS hash over the tuple; zero for what is not TCP or UDP, and where there is one queue.
    pub flow_hash: u32,
    /// Payload bytes of each wire packet merged into this one; zero where it is a single packet.
    pub segment_size: u16,
    /// What the device's contexts did to its payload.
    pub metadata: RxMetadata,
    /// What was agreed on, where this is the first frame of a connection that the device set up.
    pub established: Option<Established>,
    /// What was done to its datagrams, where they are QUIC's and the device opened them.
    pub quic: Option<Box<quic::Opened>>,
    /// How many [`crate::Op::Teardown`]s of this host the device had taken up when the frame came
    /// (modulo 2^32): it tells which of those that the host has handed over it cannot have known.
    pub teardowns: u32,
}

impl Received {
    /// A frame of which no more is known than what the wire and the receive pipeline say.
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
            established: None,
            quic: None,
            teardowns: 0,
        }
    }

    /// The frame's buffer; none is left.
    #[must_use]
    pub fn take_packet(&mut self) -> PacketBuf {
        core::mem::replace(&mut self.packet, PacketBuf::empty())
    }
}

/// How busy a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Share of its time in thousandths, 0 to 1000.
    pub permille: u16,
    /// Whether that is too much: the host hands it no more connections until it says otherwise.
    pub high: bool,
}

/// Result of the receive checksum engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It was verified: the field holds the right sum.
    Good,
    /// The sender and we share a machine, and it was never filled in: the field holds the
    /// pseudo-header's sum, as virtio's `NEEDS_CSUM` has it. As good as verified, but who sends the
    /// packet on has to sum it, or leave that to the next wire.
    Partial,
    /// It is wrong.
    Bad,
    /// Nobody looked.
    Unchecked,
}

impl Checksum {
    /// Whether the packet's content may be believed.
    #[must_use]
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Good | Self::Partial)
    }
}

/// The end of a transmit that asked for an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitDone {
    /// The connection.
    pub flow: FlowId,
    /// The tag of the transmit.
    pub tag: u32,
    /// Time from the device's taking of the transmit to its first byte's departure: the disk's
    /// share.
    pub delay: Duration,
    /// How it ended.
    pub outcome: TransmitOutcome,
}

/// How a transmit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitOutcome {
    /// It left.
    Sent,
    /// It could not be completed and was dropped; no byte of it was sent. Later transmits of the
    /// flow that were already queued are dropped too, so that nothing follows a hole.
    Dropped(FileFault),
}

/// The answer to a `FileOpen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOpened {
    /// Which file.
    pub file: FileId,
    /// Its metadata, or why it is not open.
    pub result: Result<FileStat, FileFault>,
}

/// Metadata of an open file: what `offload_fstat` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// What kind of file it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Time of last modification, seconds since 1970 UTC.
    pub modified_s: i64,
    /// Nanoseconds of the same.
    pub modified_ns: u32,
    /// With an open: differs from that of every other content (device, inode, size, time stamps
    /// hashed), so that equal versions mean equal bytes. With a read: that of the open while the
    /// bytes that the file had then are the same, else another. A link count, a mode, an owner, or
    /// bytes appended change none of them.
    pub version: u64,
}

/// Kinds of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file: the only kind that is ever read as [`crate::FileAccess::Content`].
    Regular,
    /// A block device: may be a namespace.
    Block,
    /// A directory.
    Directory,
    /// Anything else: a character device, a FIFO, a socket.
    Other,
}

/// What went wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileFault {
    /// There is no such file.
    NotFound,
    /// The operating system refuses access, or the path leads out of the root.
    Denied,
    /// The path is not one that can be opened (too long, a component that is no directory, a loop).
    BadPath,
    /// The disk failed.
    Io,
    /// The file is not what it was when it was opened: truncated, rewritten or replaced.
    Changed,
    /// The host named a file that is not open, or bytes that it does not have.
    BadExtent,
    /// The disk has no room for what was written.
    NoSpace,
    /// An earlier transmit of the same flow was dropped.
    FlowFailed,
    /// The device would not take it.
    Refused(Refusal),
}

impl core::fmt::Display for FileFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotFound => "no such file",
            Self::Denied => "permission denied",
            Self::BadPath => "bad path",
            Self::Io => "disk error",
            Self::Changed => "the file changed while it was being sent",
            Self::BadExtent => "no such file handle or range",
            Self::NoSpace => "no space left on the disk",
            Self::FlowFailed => "an earlier transmit of the connection failed",
            Self::Refused(why) => return write!(f, "refused: {why}"),
        })
    }
}
