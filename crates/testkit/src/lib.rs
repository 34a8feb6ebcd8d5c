//! What tests of the stack share: a DSL for TCP exchanges, counter assertions, two hosts joined by
//! a small wire, TLS of both ends ([`tls13`]), PDUs of NVMe/TCP ([`pdu`]), and pictures of
//! transition tables ([`states`]).
//!
//! [`Peer`] is one host under test and a scripted peer: every segment is written down, as in
//! packetdrill. [`Pair`] is two hosts that talk to each other over a path that delays, loses,
//! reorders and doubles. Both run on virtual time: nothing sleeps, nothing reads a clock. They are
//! for tests only and panic with both sides of the comparison where an expectation does not hold.
#![forbid(unsafe_code)]

mod decode;
mod disk;
mod machine;
mod network;
mod nvme;
mod pair;
mod peer;
mod seg;
pub mod states;
mod tls;

pub use decode::{PAGE_PATTERN, file_byte, file_bytes, packets};
pub use disk::{DiskOrder, MemDisk, MemFile};
pub use machine::{Asker, Frame, Machine, Notices, PLAIN_LINK, Reader, TestDisk, count, read_all};
pub use network::{LinkRule, Network, Node, Towards, delay};
pub use nvme::pdu;
pub use pair::{Pair, Path, Side, Transfer};
pub use peer::{DeviceFile, HOST, HOST_V6, MAC, PEER, PEER_MAC, PEER_V6, Peer};
pub use seg::Seg;
pub use tls::{Certificate, TlsOffer, limited_suite, session_keys, tls13, tls13_limited};
pub use wire::tcp::Flags;
