//! Tear-down offload (AccelTCP section 4.2): the host hands a closed connection over to the device.
//!
//! With [`Teardown`] the host hands over the remaining state of a connection that its application
//! has closed, and forgets it. The device sends the remaining bytes, retransmits lost ones, sends
//! the FIN, and keeps TIME-WAIT. It reports ended connections in sums ([`TeardownDone`]).

use alloc::boxed::Box;
use base::{Duration, SeqNum};
use smallvec::SmallVec;

use crate::l5o::L5oId;
use crate::{FlowId, PacketHeader, Refusal, TransmitParts, TsvalPosition};

/// A connection handed over to the device.
#[derive(Debug)]
pub struct Teardown {
    /// The connection, so that its segments leave after those that the host has queued.
    pub flow: FlowId,
    /// Headers of a segment without payload, as in [`crate::Transmit`], with the current
    /// acknowledgment number, window and, if negotiated, TSval and TSecr. The device fills in
    /// sequence numbers and flags.
    pub header: PacketHeader,
    /// Position of the timestamp; the device advances TSval by the time since it took the
    /// operation.
    pub timestamp: Option<TsvalPosition>,
    /// SND.UNA: first sequence number that the peer has not acknowledged.
    pub una: SeqNum,
    /// First sequence number that was never sent; after the FIN if the FIN was sent.
    pub nxt: SeqNum,
    /// Right edge of the peer's window.
    pub edge: SeqNum,
    /// Window scale of the peer's windows.
    pub peer_scale: u8,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// Payload bytes of a full segment after three consecutive time-outs, since the path may drop
    /// larger packets silently; `mss` if the size is to stay.
    pub mss_after_timeouts: u16,
    /// The bytes from `una` up to the FIN. They are sent and retransmitted in whole parts, so a
    /// part begins at `nxt`, and an encrypted part carries the preceding content of its message.
    /// Empty if `una` is after the last byte.
    pub parts: TransmitParts,
    /// RCV.NXT: next sequence number expected from the peer; after its FIN if that was received.
    pub rcv_nxt: SeqNum,
    /// State of the connection once the FIN is sent.
    pub state: ClosingState,
    /// Current retransmission time-out.
    pub rto: Duration,
    /// Duration of TIME-WAIT, and limit of FIN-WAIT-2.
    pub time_wait: Duration,
    /// Contexts to destroy once everything is acknowledged.
    pub contexts: SmallVec<[L5oId; 2]>,
    /// Response to data at or after `rcv_nxt`.
    pub late_data: LateData,
}

/// State of a connection that is handed over (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosingState {
    /// Neither side's FIN is acknowledged.
    FinWait1,
    /// Everything including the host's FIN is acknowledged: `una` and `nxt` are after it, and there
    /// are no parts.
    FinWait2,
    /// The peer's FIN arrived after the application closed and before the acknowledgment of the
    /// host's FIN.
    Closing,
    /// The peer's FIN arrived before the application closed.
    LastAck,
}

/// Response to data that the peer sends after the application has closed the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateData {
    /// A reset (RFC 1122 section 4.2.2.13).
    #[default]
    Reset,
    /// An acknowledgment: the data is discarded, since a reset could destroy a response that the
    /// peer has not read yet (RFC 9112 section 9.6). Data beyond `bytes_max` is answered with a
    /// reset.
    Discard {
        /// Bytes that may still be discarded.
        bytes_max: u32,
    },
}

/// The device refused a connection, which stays with the host as it was.
#[derive(Debug)]
pub struct TeardownRefused {
    /// The operation that was refused.
    pub teardown: Box<Teardown>,
    /// The reason.
    pub reason: Refusal,
}

/// Numbers of handed-over connections of a queue that have ended since the last report. A
/// connection in TIME-WAIT counts as ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeardownDone {
    /// Closed in both directions and acknowledged.
    pub closed: u32,
    /// Reset by the peer, or by the device because the peer sent unexpected data or the host
    /// quiesced.
    pub reset: u32,
    /// Timed out: the peer did not answer the last retransmission, or did not close in time.
    pub timed_out: u32,
}

impl TeardownDone {
    /// Returns the number of connections.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.closed.saturating_add(self.reset).saturating_add(self.timed_out)
    }
}

/// Limits of the tear-down offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeardownLimits {
    /// Connections at one time, over all queues, without those in TIME-WAIT.
    pub flows_max: u32,
    /// Payload bytes of one connection.
    pub bytes_max: u32,
}
