//! NVMe over TCP, above [`host::nvme`]: commands and what they mean.
//!
//! [`initiator`] is the end that uses namespaces (a host, in the words of NVMe), [`target`] the one
//! that has them; [`handshake`] is how both come by keys where the connection is secure, and
//! `channel` a connection with that in front.

mod channel;
pub mod handshake;
pub mod initiator;
pub mod target;

pub use channel::Insecure;
