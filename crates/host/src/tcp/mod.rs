//! TCP: RFC 9293 and what a kernel's user expects beside it, cut by role.
//!
//! | file | role |
//! |---|---|
//! | [`conn`] | the connection: what belongs to it, what an application does to it |
//! | [`input`] | a segment arrives: acceptability, resets, what goes where |
//! | [`ack`] | an acknowledgment: what it delivers, loss, recovery, congestion |
//! | [`numbers`] | first sequence numbers and timestamps |
//! | [`output`] | what may be sent now, and as which transmits |
//! | [`expire`] | timers |
//! | [`rcv`] | receive window, reassembly, SACK blocks, when to acknowledge |
//! | [`spans`] | the send stream as a map from positions to sources |
//! | [`transform`] | what the send stream asks of protocols above TCP |
//! | [`flight`] | what was sent and is not acknowledged |
//! | [`rack`] | what of it is lost |
//! | [`recovery`] | how fast to go meanwhile |
//! | [`congestion`], [`hystart`] | the window: NewReno and CUBIC; the end of slow start |
//! | [`delivery`] | how fast the path takes bytes: for `SocketInfo` |
//! | [`rtt`], [`timers`], [`state`] | estimator, timer table, states |
//! | [`listen`] | listeners, SYN cache |
//! | [`socket`] | what the application sees of a connection, and its options |
//! | [`hand_over`] | a connection's last step: what the device tears down |
//! | [`time_wait`] | closed connections whose tuple is kept |
//!
//! What the device applies too, when it sets connections up and tears them down, is in
//! [`tcp_rules`]: acceptability, PAWS, challenge acknowledgments, TIME-WAIT's verdict, SYN cookies.
//!
//! Nothing here sends: what is to be sent goes to the [`crate::net::outbox::Outbox`] as operations
//! for the device.

pub(crate) mod ack;
pub(crate) mod congestion;
pub(crate) mod conn;
pub(crate) mod delivery;
pub(crate) mod expire;
pub(crate) mod flight;
pub(crate) mod hand_over;
pub(crate) mod hystart;
pub(crate) mod input;
pub(crate) mod listen;
pub(crate) mod numbers;
pub(crate) mod output;
pub(crate) mod rack;
mod ranges;
pub(crate) mod rcv;
pub(crate) mod recovery;
pub(crate) mod rtt;
pub(crate) mod socket;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod time_wait;
pub(crate) mod timers;
pub(crate) mod transform;
