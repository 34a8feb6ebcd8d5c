//! TCP: RFC 9293 and the extensions that a kernel's TCP is expected to have, one file for each
//! function.
//!
//! | file | function |
//! |---|---|
//! | [`conn`] | the transmission control block (TCB) and the calls of the application |
//! | [`input`] | incoming segments: acceptability, resets, dispatch |
//! | [`ack`] | acknowledgments: delivery, loss, recovery, congestion |
//! | [`initial_numbers`] | initial sequence numbers and timestamp offsets |
//! | [`output`] | decides which bytes may be sent now, and in which transmits |
//! | [`expire`] | expired timers |
//! | [`rcv`] | receive window, reassembly, SACK blocks, delayed acknowledgments |
//! | [`spans`] | the send buffer: a map from stream positions to sources of bytes |
//! | [`transform`] | the interface to protocols that make stream bytes (TLS records, PDUs) |
//! | [`scoreboard`] | the scoreboard: ranges that were sent and are not acknowledged |
//! | [`rack`] | loss detection (RACK) |
//! | [`recovery`] | phases of congestion, proportional rate reduction, undo |
//! | [`congestion`], [`hystart`] | congestion window: NewReno and CUBIC; the end of slow start |
//! | [`bbr`], [`bbr_feedback`] | BBR; the events of a connection that it needs |
//! | [`delivery`] | delivery rate for `SocketInfo` |
//! | [`rtt`], [`timers`], [`state`] | round-trip estimator, timer table, state machine |
//! | [`mtu_probing`], [`path_mtu`] | path MTU discovery without ICMP; its state machine |
//! | [`listen`] | listeners, SYN cache |
//! | [`socket`] | readiness, options and `SocketInfo` of a connection |
//! | [`teardown`] | tear-down offload: what of a connection is handed to the device |
//! | [`time_wait`] | connections in TIME-WAIT |
//!
//! The rules that the device applies too, when it sets up connections and tears them down, are in
//! [`tcp_rules`]: acceptability, PAWS, challenge acknowledgments, segments in TIME-WAIT, SYN
//! cookies.
//!
//! Nothing here sends by itself: transmits go to the [`crate::net::outbox::Outbox`] as operations
//! for the device.

pub(crate) mod ack;
mod bbr;
mod bbr_feedback;
pub(crate) mod congestion;
pub(crate) mod conn;
pub(crate) mod delivery;
pub(crate) mod expire;
pub(crate) mod hystart;
pub(crate) mod initial_numbers;
mod inline_first_queue;
pub(crate) mod input;
pub(crate) mod listen;
pub(crate) mod mtu_probing;
pub(crate) mod output;
mod path_mtu;
pub(crate) mod rack;
pub(crate) mod rcv;
pub(crate) mod recovery;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod socket;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod teardown;
pub(crate) mod time_wait;
pub(crate) mod timers;
pub(crate) mod transform;

/// Converts a number of bytes in a connection's buffers.
#[expect(clippy::cast_possible_truncation, reason = "a connection's buffer has less than 4 GiB")]
const fn buffered_u32(bytes: usize) -> u32 {
    bytes as u32
}
