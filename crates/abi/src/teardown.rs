//! Connection tear-down by the device: a TCB that changes its owner (AccelTCP section 4.2).
//!
//! With [`Teardown`] the host hands over everything that is left of a connection whose application
//! has closed it, and forgets it: the device sends what was not sent, sends again what is lost,
//! ends with the FIN, and keeps TIME-WAIT. It tells of ends in sums ([`TeardownDone`]).

use alloc::boxed::Box;
use base::{Duration, SeqNum};
use smallvec::SmallVec;

use crate::l5o::L5oId;
use crate::{FlowId, Header, Parts, Refusal, TsOption};

/// A connection in the hands of the device.
#[derive(Debug)]
pub struct Teardown {
    /// Its name, so that what it sends stays behind what the host sent before.
    pub flow: FlowId,
    /// Headers of a segment without payload, as of [`crate::Transmit`], with the acknowledgment,
    /// the window and, where there are timestamps, TSval and TSecr as of now. The device fills in
    /// numbers and flags.
    pub header: Header,
    /// Where the timestamp stands; the device moves TSval on by the time since it took this.
    pub timestamp: Option<TsOption>,
    /// First byte that the peer has not acknowledged.
    pub una: SeqNum,
    /// First byte that was never sent; behind the FIN, if that was.
    pub nxt: SeqNum,
    /// Right edge of the peer's window.
    pub edge: SeqNum,
    /// Shift of the windows that the peer offers.
    pub peer_scale: u8,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// The bytes from `una` to the FIN, which follows the last of them. They are sent, and sent
    /// again, by whole parts; so a part begins at `nxt`, and a sealed part brings the content that
    /// precedes it in its message. None where `una` is behind the last byte.
    pub parts: Parts,
    /// Next byte expected of the peer; behind its FIN, if that came.
    pub rcv_nxt: SeqNum,
    /// State of the connection, once the FIN is sent.
    pub state: ClosingState,
    /// Retransmission time-out as of now.
    pub rto: Duration,
    /// How long the tuple is kept in TIME-WAIT; as long FIN-WAIT-2 may last.
    pub time_wait: Duration,
    /// Contexts that nobody needs once everything is acknowledged.
    pub contexts: SmallVec<[L5oId; 2]>,
    /// The answer to data behind `rcv_nxt`.
    pub late_data: LateData,
}

/// State of a connection that is handed over: RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosingState {
    /// Neither FIN is acknowledged.
    FinWait1,
    /// Everything is acknowledged, the FIN too: `una` and `nxt` are behind it, and there are no
    /// parts.
    FinWait2,
    /// The peer's FIN came after the application had closed, and before the acknowledgment of ours.
    Closing,
    /// The peer's FIN came before the application closed.
    LastAck,
}

/// The answer to data that a peer sends after the application has closed the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateData {
    /// A reset: RFC 1122 section 4.2.2.13.
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

/// The device would not take a connection: it is the host's as it was.
#[derive(Debug)]
pub struct TeardownRefused {
    /// What was to be handed over.
    pub teardown: Box<Teardown>,
    /// Why not.
    pub why: Refusal,
}

/// Connections of a queue that the device was handed and that have ended since it last said so;
/// TIME-WAIT counts as ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeardownDone {
    /// Both directions were closed and acknowledged.
    pub closed: u32,
    /// Reset, by the peer or because the peer had more to say.
    pub reset: u32,
    /// The peer did not answer until the retransmissions were used up, or did not close in time.
    pub timed_out: u32,
}

impl TeardownDone {
    /// How many.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.closed.saturating_add(self.reset).saturating_add(self.timed_out)
    }
}

/// What the engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeardownLimits {
    /// Connections at one time, over all queues, those in TIME-WAIT apart.
    pub flows_max: u32,
    /// Payload bytes of one of them.
    pub bytes_max: u32,
}
