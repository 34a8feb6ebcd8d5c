//! QUIC (RFC 9000) over the host's UDP sockets, based on quinn-proto, with packet protection and
//! file content that can be offloaded to the device.
//!
//! An [`QuicEndpoint`] runs beside [`host::Host`] as an application does: it handles notices and
//! timeouts and emits events. Unmodified quinn-proto implements RFC 9000 and RFC 9002; this crate
//! turns its packets into operations of the contract (`abi::quic`).
//!
//! The crate is separate from `host` because quinn-proto and `rustls::quic` need the standard
//! library, which `host` does without. It is sans-IO nevertheless: the caller passes the time, and
//! randomness comes from a seed.
//!
//! From the outside in: `endpoint` (demultiplexing of datagrams, events), `connection` (streams),
//! `schedule` (order of streams), `credit` (the peer's flow control limits), `congestion`
//! (congestion control), `transmit` (datagrams), `offload` (the device's part), `file_ranges` (file
//! content in streams), `session` (TLS), `protection` and `keys` (packet protection), `secrets`
//! (tokens and connection IDs), `frames`, `info`, `qlog`, `version` (version negotiation; why only
//! version 1 is supported). DATAGRAM frames and 0-RTT on servers are not supported.
#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod counters;
mod credit;
mod endpoint;
mod file_ranges;
mod frames;
mod info;
mod keys;
mod offload;
mod protection;
mod qlog;
mod schedule;
mod secrets;
mod session;
mod transmit;
mod version;

pub use config::QuicEndpointConfig;
pub use connection::StreamWaitCounts;
pub use counters::QuicEndpointCounters;
pub use endpoint::{
    QuicConfigError, QuicConnectError, QuicEndpoint, QuicEvent, QuicHandle, SendProgress,
    StreamReadError,
};
pub use info::ConnectionInfo;
pub use qlog::{OpenQlog, QlogWriter};
pub use quinn_proto::{
    ConnectionError, ConnectionStats, Dir, PathStats, Side, StreamEvent, StreamId,
    TransportErrorCode, VarInt,
};
pub use schedule::Priority;
pub use secrets::CID_BYTES;
