//! QUIC (RFC 9000) over the host's UDP sockets, by quinn-proto, with packet protection and file
//! content that a device may take over.
//!
//! An [`Endpoint`] is a handler beside [`host::Host`], as applications are: it takes notices, is
//! called at its time, and gives events out. quinn-proto, unmodified, does what RFC 9000 and 9002
//! say; what is here is the way from its packets to operations of the contract (`abi::quic`).
//!
//! A crate of its own, since quinn-proto and `rustls::quic` need the standard library, which `host`
//! does without. It is sans-IO all the same: time comes in, randomness comes from a seed.
//!
//! From the outside in: `endpoint` (who gets a datagram, events), `connection` (streams),
//! `schedule` (whose turn it is), `credit` (what the peer lets us send), `congestion` (how much),
//! `transmit` (datagrams), `offload` (the device), `placed` (bytes of files in streams), `session`
//! (TLS), `protection` and `keys` (packets), `secrets` (tokens and connection IDs), `frames`,
//! `info`, `qlog`, `version` (why it speaks version 1 alone). It has no datagram frames and no
//! 0-RTT for servers.
#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod counters;
mod credit;
mod endpoint;
mod frames;
mod info;
mod keys;
mod offload;
mod placed;
mod protection;
mod qlog;
mod schedule;
mod secrets;
mod session;
mod transmit;
mod version;

pub use config::Config;
pub use connection::Waiting;
pub use counters::Counters;
pub use endpoint::{ConfigError, ConnectError, Endpoint, Event, Handle, Progress, ReadEnd};
pub use info::ConnectionInfo;
pub use qlog::{OpenQlog, QlogWriter};
pub use quinn_proto::{
    ConnectionError, ConnectionStats, Dir, PathStats, Side, StreamEvent, StreamId,
    TransportErrorCode, VarInt,
};
pub use schedule::Priority;
pub use secrets::CID_BYTES;
