//! The autonomous offload of protocols above TCP (Autonomous NIC Offloads, listings 1 and 2):
//! contexts, what a transmit says of the messages in it, and what a received frame says was done.
//!
//! TCP stays on the host and knows nothing of it. A context serves one direction of one flow. The
//! host names it, once in its life, so that whatever is said of an old one cannot be mistaken for a
//! new one's.

use alloc::boxed::Box;
use core::fmt;
use core::ops::Range;

use base::SeqNum;
use bytes::Bytes;
use wire::Tuple;
use wire::tls::{Framing, NONCE_BYTES, Run, Version};
use zeroize::Zeroizing;

use crate::crypto::Suite;
use crate::nvme_tcp::{NvmeTcpLimits, NvmeTcpState, PduRange, Placed};
use crate::{FileExtent, FlowId, Refusal};

/// The host's name for a context. A host never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct L5oId(pub u64);

/// Which way a context works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It completes what the host sends.
    Transmit,
    /// It opens what comes on this connection. `local` is the host's end.
    Receive(Tuple),
}

/// `l5o_create`: a context, from the message that begins at `tcpsn` on.
#[derive(Debug)]
pub struct L5oCreate {
    /// Its name.
    pub context: L5oId,
    /// The connection, for what the device has to say about it.
    pub flow: FlowId,
    /// Which way.
    pub direction: Direction,
    /// Sequence number of the first byte of message [`TlsState::number`].
    pub tcpsn: SeqNum,
    /// The protocol and its state (the paper's `l5_state`).
    pub state: L5oState,
}

/// Protocols, and what each needs at a message's boundary.
#[derive(Debug)]
#[non_exhaustive]
pub enum L5oState {
    /// TLS 1.2 or 1.3.
    Tls(TlsState),
    /// NVMe over TCP, or over TLS.
    NvmeTcp(NvmeTcpState),
}

/// Keys of one direction of a TLS connection (the kernel's `tls12_crypto_info`).
pub struct TlsState {
    /// Which record layer.
    pub version: Version,
    /// Which AEAD.
    pub suite: Suite,
    /// Its key: the first [`Suite::key_bytes`] count.
    pub key: Zeroizing<[u8; 32]>,
    /// What nonces are made from.
    pub iv: [u8; NONCE_BYTES],
    /// Number of the next record.
    pub number: u64,
}

impl TlsState {
    /// How its records are framed.
    #[must_use]
    pub fn framing(&self) -> Framing {
        framing(self.version, self.suite)
    }
}

/// How records of a version and suite are framed: RFC 5288 has part of the nonce in the record, RFC
/// 7905 and RFC 8446 have not.
#[must_use]
pub fn framing(version: Version, suite: Suite) -> Framing {
    let explicit = version == Version::Tls12 && suite != Suite::ChaCha20Poly1305;
    Framing { version, explicit }
}

impl fmt::Debug for TlsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key.
        f.debug_struct("TlsState").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Part of a transmit: bytes on the wire that are a range of a run of messages, to be completed by
/// a context.
///
/// The host gives the content; the device makes headers and trailers, and seals. So one of these
/// describes any number of records, and the host's cost does not grow with them.
///
/// What a message's trailer says depends on all of its content. Where the range begins within a
/// message and is the first byte that the context expects, the device has the state of what came
/// before. Where it is not (a retransmission, or new data after one), [`Self::prefix`] bytes of
/// content before the range come with it: the paper's `l5o_get_tx_msgstate` and its prefix, in the
/// transmit that needs them.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// The context.
    pub context: L5oId,
    /// Content, from `prefix` bytes before the range's first to the range's last.
    pub content: Content,
    /// Bytes of `content` that precede the range: zero, or all content of the message before it.
    pub prefix: u32,
    /// Number of the message that the range begins in.
    pub number: u64,
    /// What the messages carry: TLS's content type.
    pub kind: u8,
    /// The messages from that one on, which is the first of the run.
    pub run: Run,
    /// Bytes of that message, on the wire, before the range.
    pub skip: u32,
    /// Bytes of the range, on the wire.
    pub len: u32,
}

/// Where content comes from.
#[derive(Clone, Debug)]
pub enum Content {
    /// The host's memory.
    Host(Bytes),
    /// A file that the device reads.
    File(FileExtent),
    /// A range of a PDU of NVMe/TCP, whose data digest the device fills in first.
    Pdu(Box<PduRange>),
}

impl Content {
    /// Bytes of content.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::File(extent) => extent.len as usize,
            Self::Pdu(pdu) => pdu.len as usize,
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a device did to the payload of a received frame.
///
/// Bytes outside `range` are exactly as they came. Within it, the sealed text of every message is
/// opened in place; headers, explicit nonces and tags stay as they came. Whether that text may be
/// believed is another matter: `verified` names the messages of which the device has opened every
/// byte, each once, and whose tag it found right, with this frame as the last. A message opened but
/// not verified has to be restored ([`crate::crypto::Aead::apply`] undoes itself) and opened again
/// by the host, as has one of which another frame brought bytes unopened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The context that did it.
    pub context: L5oId,
    /// Which bytes of the TCP payload.
    pub range: Range<u32>,
    /// Number of the message that `range` begins in, as far as the device knows: it may have
    /// guessed. Messages that begin within the range follow with the next numbers, where the
    /// lengths in their headers say.
    pub number: u64,
    /// Bytes of that message before `range`.
    pub offset: u32,
    /// Bytes of that message, header and all; it ends there though `range` may go on.
    pub message_len: u32,
    /// The explicit part of that message's nonce, if it has one.
    pub explicit: [u8; 8],
    /// Messages that are verified.
    pub verified: Range<u64>,
}

/// What the device's contexts did to a received segment. TCP passes it from the frame to whoever
/// reads the bytes, and only knows whether there is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxMetadata {
    /// Messages that were decrypted in place.
    pub opened: Option<Opened>,
    /// What was done with the NVMe/TCP PDUs in the payload.
    pub placed: Option<Box<Placed>>,
}

impl RxMetadata {
    /// The metadata of a segment that is as it came.
    pub const EMPTY: Self = Self { opened: None, placed: None };

    /// Returns whether the segment is as it came.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.opened.is_none() && self.placed.is_none()
    }
}

/// `l5o_resync_rx_req`, in the three ways that Linux knows (`enum tls_offload_sync_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncRequest {
    /// `DRIVER_REQ`: a header seems to begin at `tcpsn`.
    Scan {
        /// Where.
        tcpsn: SeqNum,
    },
    /// `DRIVER_REQ_ASYNC`, start: note where messages begin from `tcpsn` on, for `len` bytes.
    AsyncStart {
        /// From where.
        tcpsn: SeqNum,
        /// For how long.
        len: u32,
    },
    /// `DRIVER_REQ_ASYNC`, end: of those, does one begin at `tcpsn`?
    AsyncEnd {
        /// Where.
        tcpsn: SeqNum,
    },
    /// `DRIVER_REQ_ASYNC`, cancelled: the device found back by itself.
    AsyncCancel,
}

/// How a receive context that lost its place finds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResyncMode {
    /// The device searches the stream and asks: Linux's `DRIVER_REQ`, the paper's figure 7.
    #[default]
    StreamScan,
    /// The host tells where the next message begins, unasked: Linux's `CORE_NEXT_HINT`.
    NextHint,
    /// The device searches and asks for a log of what the host saw: `DRIVER_REQ_ASYNC`.
    Async,
}

/// What the engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L5oLimits {
    /// Contexts at one time, over all queues and both directions.
    pub contexts_max: u32,
    /// How receive contexts find back.
    pub resync: ResyncMode,
    /// Seals.
    pub tls_tx: bool,
    /// Opens.
    pub tls_rx: bool,
    /// What it does for NVMe over TCP.
    pub nvme_tcp: NvmeTcpLimits,
}

/// A context is not there: it was refused when it was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L5oRefused {
    /// Which.
    pub context: L5oId,
    /// Of which connection.
    pub flow: FlowId,
    /// Why.
    pub why: Refusal,
}
