//! The host half of the stack: TCP's control plane, sockets, and the driver's end of the contract.
//!
//! A [`Host`] is one core's stack. It owns every connection; the device (crate `nic`) only
//! completes what the host promised. It is sans-IO: the caller feeds it the device's events and the
//! time, and takes operations out.
//!
//! | module | what it does |
//! |---|---|
//! | `application` | what runs above a host, as its driver sees it |
//! | `nvme` | NVMe/TCP above a socket |
//! | `host` | the contract's end, and the application's: it gives everything to a service |
//! | `accept` | connections that peers begin: listeners, SYN cookies, set-up by the device |
//! | `splice` | pairs of connections that the device relays between: `nsplice` |
//! | `stream` | sockets of byte streams |
//! | `udp` | UDP sockets |
//! | `l5p` | protocols above TCP: TLS, PDUs of NVMe/TCP |
//! | `tcp` | TCP by role |
//! | `storage` | file handles, the software path for what the device does not send, namespaces |
//! | `net` | what leaves; addresses, neighbours, ICMP |
//!
//! Imports point downwards only; `xtask imports` checks it.
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
mod limit;
mod net;
pub mod nvme;
mod rare;
mod splice;
mod storage;
mod stream;
mod tcp;
mod udp;

pub use api::{
    ConnectError, DiskToken, DiskUser, FaultScope, FileId, FileKind, FileStat, Listen, ListenError,
    ListenerId, ListenerOption, Notice, NvmeInfo, Readiness, SendError, SocketError, SocketId,
    SocketInfo, SocketOption, SpliceEnd, SpliceError, SpliceId, SpliceMeta, TlsInfo, UdpId,
};
pub use application::Application;
pub use config::{Algorithm, Cidr, Config, FirstNumbers, TcpConfig};
pub use counters::HostCounters;
pub use host::Host;
pub use l5p::tls::{Alert, TlsClient, TlsDirection, TlsKeys, TlsSecrets, TlsServer, TlsVersion};
pub use storage::extents::{ExtentDone, ExtentRead};
pub use tcp::congestion::{Congestion, RenoGrowth};
pub use udp::{UdpReceived, UdpSend};
