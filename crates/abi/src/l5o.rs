//! Layer-5 offload (Autonomous NIC Offloads, listings 1 and 2): contexts, descriptions of messages
//! in transmits, and results in received frames.
//!
//! TCP stays on the host and is not involved. A context serves one direction of one flow. The host
//! numbers contexts and never reuses a number, so a late event of an old context is never taken for
//! one of a new context.

use alloc::boxed::Box;
use core::fmt;
use core::ops::Range;

use base::SeqNum;
use bytes::Bytes;
use wire::Tuple;
use wire::tls::{NONCE_BYTES, TlsFraming, TlsRecordRun, TlsRecordVersion};
use zeroize::Zeroizing;

use crate::crypto::Suite;
use crate::inspect::{InspectClaims, InspectState};
use crate::nvme_tcp::{NvmeRxClaims, NvmeTcpLimits, NvmeTcpState, PduRange};
use crate::{FileExtent, FlowId, Refusal};

/// The host's number for a context; never reused by a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct L5oId(pub u64);

/// Direction of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L5oDirection {
    /// Completes (encrypts, fills in digests) the messages that the host sends.
    Transmit,
    /// Processes the messages received on this connection. `local` is the host's end.
    Receive(Tuple),
}

/// `l5o_create`: a new context, which starts with the message at `tcpsn`.
#[derive(Debug)]
pub struct L5oCreate {
    /// The new context.
    pub context: L5oId,
    /// The connection, for reports of the device.
    pub flow: FlowId,
    /// The direction.
    pub direction: L5oDirection,
    /// Sequence number of the first byte of message [`TlsState::number`].
    pub tcpsn: SeqNum,
    /// The protocol and its state (the paper's `l5_state`).
    pub state: L5oState,
}

/// Protocols and their state at a message boundary.
#[derive(Debug)]
#[non_exhaustive]
pub enum L5oState {
    /// TLS 1.2 or 1.3.
    Tls(TlsState),
    /// NVMe over TCP, on plain TCP or in TLS records.
    NvmeTcp(NvmeTcpState),
    /// Inspection for patterns, of a stream, of the content of TLS records or of the data of
    /// NVMe/TCP commands. It only receives, and `tcpsn` is not used: inspection may begin at any
    /// byte.
    Inspect(InspectState),
}

/// Keys of one direction of a TLS connection (Linux: `tls12_crypto_info`).
pub struct TlsState {
    /// Version of the record layer.
    pub version: TlsRecordVersion,
    /// The AEAD algorithm.
    pub suite: Suite,
    /// AEAD key: the first [`Suite::key_bytes`] bytes.
    pub key: Zeroizing<[u8; 32]>,
    /// IV from which nonces are made; in TLS 1.2 with AES-GCM its first four bytes are the salt.
    pub iv: [u8; NONCE_BYTES],
    /// Number of the next record.
    pub number: u64,
}

impl TlsState {
    /// Returns the framing of the records.
    #[must_use]
    pub fn framing(&self) -> TlsFraming {
        framing(self.version, self.suite)
    }
}

/// Returns the framing of records of a version and suite: RFC 5288 puts part of the nonce in the
/// record; RFC 7905 and RFC 8446 do not.
#[must_use]
pub fn framing(version: TlsRecordVersion, suite: Suite) -> TlsFraming {
    let explicit = version == TlsRecordVersion::Tls12 && suite != Suite::ChaCha20Poly1305;
    TlsFraming { version, explicit_nonce: explicit }
}

impl fmt::Debug for TlsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the key.
        f.debug_struct("TlsState").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Part of a transmit: a range of a run of consecutive messages, which a context completes.
///
/// The host supplies the content; the device adds headers and trailers and encrypts. One
/// `RecordRange` covers any number of records, so the host's cost does not grow with their number.
///
/// The trailer of a message depends on all of its content. If the range begins within a message at
/// the byte that the context expects next, the device has the state of the preceding content.
/// Otherwise (a retransmission, or new data after one) the transmit carries the preceding content
/// of the message as [`Self::prefix`]: the prefix of the paper's `l5o_get_tx_msgstate`.
#[derive(Clone, Debug)]
pub struct RecordRange {
    /// The transmit context.
    pub context: L5oId,
    /// Content, from `prefix` bytes before the range to the end of the range.
    pub content: L5oContent,
    /// Leading bytes of `content` that are not part of the range: zero, or all preceding content of
    /// the message.
    pub prefix: u32,
    /// Number of the message in which the range begins.
    pub number: u64,
    /// Content type of the messages (TLS `ContentType`).
    pub kind: u8,
    /// The run of messages; its first message is the one in which the range begins.
    pub run: TlsRecordRun,
    /// Bytes of that message before the range, as sent (header included).
    pub skip: u32,
    /// Length of the range, as sent.
    pub len: u32,
}

/// Source of content.
#[derive(Clone, Debug)]
pub enum L5oContent {
    /// Bytes in the host's memory.
    Host(Bytes),
    /// Bytes of a file, read by the device.
    File(FileExtent),
    /// A range of an NVMe/TCP PDU whose data digest the device fills in before it encrypts.
    Pdu(Box<PduRange>),
}

impl L5oContent {
    /// Returns the length of the content in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::File(extent) => extent.len as usize,
            Self::Pdu(pdu) => pdu.len as usize,
        }
    }

    /// Returns whether there is no content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Claim that the device decrypted part of a received frame's TCP payload.
///
/// Bytes outside `range` are exactly as received. Within it, the ciphertext of every message was
/// decrypted in place; headers, explicit nonces and tags are unchanged. Decrypted is not verified:
/// `verified` names the messages of which the device has decrypted every byte exactly once and
/// whose tag was correct, with this frame as the last. A message that was decrypted but not
/// verified has to be encrypted again ([`crate::crypto::Aead::apply_keystream`] is its own inverse)
/// and then decrypted and verified by the host, and so has a message of which another frame
/// delivered encrypted bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L5oDecrypted {
    /// The context that decrypted the bytes.
    pub context: L5oId,
    /// Decrypted range of the TCP payload.
    pub range: Range<u32>,
    /// Number of the message in which `range` begins, as assumed by the device; it may be
    /// speculative. Messages that begin within the range have the following numbers, at the
    /// positions given by the lengths in the headers.
    pub number: u64,
    /// Bytes of that message before `range`.
    pub offset: u32,
    /// Length of that message in bytes, header included; `range` may extend beyond it.
    pub message_len: u32,
    /// Explicit part of that message's nonce, if the framing has one.
    pub explicit_nonce: [u8; 8],
    /// Numbers of the verified messages.
    pub verified: Range<u64>,
}

/// Claims of the device's contexts about a received segment. TCP passes them from the frame to the
/// reader of the bytes; it only checks whether there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxMetadata {
    /// Messages that were decrypted in place.
    pub decrypted: Option<L5oDecrypted>,
    /// Claims about the stream's content, decrypted or not.
    pub stream: Option<Box<StreamClaims>>,
}

/// Claims about the content of a stream. If a frame has claims of both kinds, those of NVMe/TCP
/// include the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamClaims {
    /// NVMe/TCP PDUs in the payload were placed or verified.
    NvmeTcp(NvmeRxClaims),
    /// Bytes of the payload were inspected for patterns.
    Inspected(InspectClaims),
}

impl RxMetadata {
    /// Metadata of a segment without claims.
    pub const EMPTY: Self = Self { decrypted: None, stream: None };

    /// Returns whether there are no claims, so that the segment is as received.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.decrypted.is_none() && self.stream.is_none()
    }

    /// Returns whether all claims can be ignored, because the payload is as received: at most the
    /// results of inspections are lost.
    #[must_use]
    pub fn is_dispensable(&self) -> bool {
        self.decrypted.is_none() && self.nvme_tcp().is_none()
    }

    /// Returns the claims about NVMe/TCP PDUs.
    #[must_use]
    pub fn nvme_tcp(&self) -> Option<&NvmeRxClaims> {
        match self.stream.as_deref()? {
            StreamClaims::NvmeTcp(claims) => Some(claims),
            StreamClaims::Inspected(_) => None,
        }
    }

    /// Returns the claims about NVMe/TCP PDUs.
    #[must_use]
    pub fn nvme_tcp_mut(&mut self) -> Option<&mut NvmeRxClaims> {
        match self.stream.as_deref_mut()? {
            StreamClaims::NvmeTcp(claims) => Some(claims),
            StreamClaims::Inspected(_) => None,
        }
    }

    /// Returns the claims about inspected bytes.
    #[must_use]
    pub fn inspected(&self) -> Option<&InspectClaims> {
        match self.stream.as_deref()? {
            StreamClaims::Inspected(claims) => Some(claims),
            StreamClaims::NvmeTcp(claims) => claims.inspected.as_ref(),
        }
    }
}

/// `l5o_resync_rx_req`, in the modes of Linux (`enum tls_offload_sync_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncRequest {
    /// `DRIVER_REQ`: does a message begin at `tcpsn`, where the device found a plausible header?
    Scan {
        /// Sequence number of the header.
        tcpsn: SeqNum,
    },
    /// Start of `DRIVER_REQ_ASYNC`: the host logs where messages begin within `len` bytes from
    /// `tcpsn`.
    AsyncStart {
        /// First sequence number to log.
        tcpsn: SeqNum,
        /// Number of bytes to log.
        len: u32,
    },
    /// End of `DRIVER_REQ_ASYNC`: does one of the logged messages begin at `tcpsn`?
    AsyncEnd {
        /// Sequence number of the header.
        tcpsn: SeqNum,
    },
    /// Cancellation of `DRIVER_REQ_ASYNC`: the device resynchronized by itself.
    AsyncCancel,
}

/// Resynchronization of a receive context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResyncMode {
    /// The device scans the stream and asks the host to confirm: Linux's `DRIVER_REQ`, the paper's
    /// figure 7.
    #[default]
    StreamScan,
    /// The host announces the position of the next message without being asked: Linux's
    /// `CORE_NEXT_HINT`.
    NextHint,
    /// The device scans the stream and asks about a log kept by the host: `DRIVER_REQ_ASYNC`.
    Async,
}

/// Limits of the layer-5 engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L5oLimits {
    /// Contexts at one time, over all queues and both directions.
    pub contexts_max: u32,
    /// Resynchronization of receive contexts.
    pub resync: ResyncMode,
    /// The engine encrypts TLS records.
    pub tls_tx: bool,
    /// The engine decrypts TLS records.
    pub tls_rx: bool,
    /// NVMe/TCP features.
    pub nvme_tcp: NvmeTcpLimits,
    /// The engine inspects received bytes for patterns.
    pub inspect: bool,
}

/// The device refused to create a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L5oRefused {
    /// The context.
    pub context: L5oId,
    /// The connection.
    pub flow: FlowId,
    /// The reason.
    pub reason: Refusal,
}
