//! NVMe over TCP applications on top of [`host::nvme`].
//!
//! [`target`] serves namespaces and [`initiator`] uses them (NVMe's "host" is called initiator
//! here). [`handshake`] is the interface to the TLS handshake with pre-shared keys; `channel` is a
//! connection that starts with that handshake if one is configured.

mod channel;
pub mod handshake;
pub mod initiator;
pub mod target;

pub use channel::SecureChannelError;
