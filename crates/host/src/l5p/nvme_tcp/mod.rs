//! What a connection has for NVMe over TCP: the PDUs of its send stream, and the device's contexts.
//!
//! Called by [`crate::stream`]. The protocol itself is spoken above the socket, by
//! [`crate::nvme::Transport`].

pub(crate) mod pdus;
pub(crate) mod port;
