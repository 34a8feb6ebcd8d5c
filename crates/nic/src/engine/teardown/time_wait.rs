//! TIME-WAIT: closed connections whose tuples are kept (RFC 9293 section 3.4.2).
//!
//! Called by the engine for segments whose tuple is in this state. Entries expire in the order in
//! which they started, by the queue of the timer wheel; one with a shorter time than its
//! predecessor waits for that. Bounded: if there are too many, the oldest is evicted.

use tcp_rules::time_wait::{TimeWaitTcb, TimeWaitVerdict};
use wire::tcp::TcpHeader;

use super::flow::{TeardownEnv, TeardownFlow};

/// The result of handling a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeWaitReaction {
    /// The entry remains as it was.
    Unchanged,
    /// The entry's time starts again.
    Restarted,
    /// The segment opens a new connection; the entry is to be removed.
    Reused,
}

/// Handles a segment for a connection in TIME-WAIT.
pub(super) fn receive(
    flow: &TeardownFlow,
    cx: &mut TeardownEnv<'_>,
    segment: &TcpHeader,
    payload: usize,
) -> TimeWaitReaction {
    let ts_recent = cx.peer.profile.has_timestamps().then(|| flow.ts_recent());
    let tcb = TimeWaitTcb { snd_nxt: flow.snd_nxt, rcv_nxt: flow.rcv_nxt, ts_recent };
    match tcb.judge(segment, payload) {
        TimeWaitVerdict::Ignore => TimeWaitReaction::Unchanged,
        TimeWaitVerdict::Reuse => TimeWaitReaction::Reused,
        TimeWaitVerdict::Acknowledge => {
            flow.acknowledge(cx);
            if tcb.is_last_fin(segment, payload) {
                TimeWaitReaction::Restarted
            } else {
                TimeWaitReaction::Unchanged
            }
        }
    }
}
