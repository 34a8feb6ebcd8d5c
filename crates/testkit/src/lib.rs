//! Test support shared by the crates of the stack: a DSL for TCP exchanges ([`seg!`]), counter
//! assertions, simulated machines and links, TLS for both ends ([`tls13`]), NVMe/TCP PDUs
//! ([`pdu`]), and diagrams of transition tables ([`states`]).
//!
//! [`Peer`] is one host under test and a scripted peer: the test writes down every segment, as in
//! packetdrill. [`Pair`] is two hosts that exchange data over a path that delays, loses, reorders
//! and duplicates packets. Both run on virtual time: nothing sleeps or reads a clock. This crate is
//! for tests only. A failed expectation panics with the expected and the actual value.
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
