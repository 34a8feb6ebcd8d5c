//! Test support shared by the crates of the stack: a DSL for TCP exchanges ([`seg!`]), counter
//! assertions, simulated machines and links, TLS for both ends ([`tls13`]), NVMe/TCP PDUs
//! ([`pdu`]), and diagrams of transition tables ([`state_diagram`]).
//!
//! [`ScriptedTcpPeer`] is one host under test and a scripted peer: the test writes down every
//! segment, as in packetdrill. [`TransferPair`] is two hosts that exchange data over a path that
//! delays, loses, reorders and duplicates packets. [`SharedBottleneck`] is connections that compete
//! for the rate and the queue of a link. All run on virtual time: nothing sleeps or
//! reads a clock. This crate is for tests only. A failed expectation panics with the expected and
//! the actual value.
#![forbid(unsafe_code)]

mod bottleneck;
mod disk;
mod machine;
mod network;
mod nvme;
mod packetize;
mod pair;
mod peer;
mod seg;
pub mod state_diagram;
mod tls;

pub use bottleneck::{BottleneckConfig, FlowConfig, FlowSource, SharedBottleneck};
pub use disk::{DiskCompletionOrder, MemDisk, MemFile};
pub use machine::{
    LinkFrame, MachineHalf, NoticeRecorder, PLAIN_LINK, ReadAllApp, TestDisk, TestMachine, count,
    read_all,
};
pub use network::{LinkDestination, LinkRule, NetworkNode, TwoMachineNetwork, fixed_delay_link};
pub use nvme::pdu;
pub use packetize::{FILE_PATTERN_BYTES, file_byte, file_bytes, packetize_transmit};
pub use pair::{PairTransfer, PathConfig, TransferPair, TransferSide};
pub use peer::{
    DeviceOpenResult, HOST, HOST_MAC, HOST_V6, PEER, PEER_MAC, PEER_V6, ScriptedTcpPeer,
};
pub use seg::Seg;
pub use tls::{TestCertificate, TlsOffer, limited_suite, session_keys, tls13, tls13_limited};
pub use wire::tcp::TcpFlags;
