//! The host half of the stack: TCP's control plane, sockets, and the host's side of the contract
//! with the device.
//!
//! A [`Host`] is one core's stack. It owns every connection; the device (crate `nic`) executes the
//! host's operations. The crate is sans-IO: the caller passes in the device's events and the time,
//! and takes operations out.
//!
//! | module | contents |
//! |---|---|
//! | `application` | the interface of an application above a host |
//! | `nvme` | NVMe/TCP above a socket |
//! | `host` | [`Host`]: passes events and calls to the services below |
//! | `accept` | passive opens: listeners, SYN cookies, set-up offload |
//! | `splice` | pairs of connections that the device relays between: `nsplice` |
//! | `stream` | stream sockets |
//! | `udp` | UDP sockets |
//! | `l5p` | protocols above TCP: TLS, PDUs of NVMe/TCP |
//! | `tcp` | TCP, one file for each function |
//! | `storage` | file handles, the software path for file content, namespaces |
//! | `net` | transmission, addresses, neighbors, ICMP |
//!
//! Imports between modules point downwards in this table; `xtask imports` checks that.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

extern crate alloc;

mod accept;
mod api;
mod application;
mod config;
mod counters;
mod hash;
mod host;
mod l5p;
mod lazy_box;
mod net;
pub mod nvme;
mod rate_limit;
mod splice;
mod storage;
mod stream;
mod tcp;
mod udp;

pub use api::{
    ConnectError, ContentRequest, DiskToken, DiskUser, FaultScope, FileId, FileKind, FileStat,
    ListenConfig, ListenError, ListenerId, ListenerOption, Notice, NvmeInfo, PatternMatch,
    Readiness, SendError, SocketError, SocketId, SocketInfo, SocketOption, SpliceEnd, SpliceError,
    SpliceId, SpliceMeta, TlsInfo, UdpId,
};
pub use application::Application;
pub use config::{
    Cidr, CongestionAlgorithm, ContentSource, FirstNumbers, HostConfig, MtuProbing, TcpConfig,
};
pub use counters::HostCounters;
pub use host::Host;
pub use l5p::tls::{TlsAlert, TlsClient, TlsDirection, TlsKeys, TlsSecrets, TlsServer, TlsVersion};
pub use net::autoconf::{
    AutoAddrConfig, AutoAddrCounters, AutoAddrEvent, AutoAddrFrame, AutoAddrs, NetworkAddrs,
};
pub use storage::extents::{DecompressDone, ExtentDone, ExtentRead};
pub use stream::moving::MovedConnection;
pub use tcp::congestion::{Congestion, CongestionSnapshot, RenoGrowth};
pub use udp::{UdpReceived, UdpSend};
