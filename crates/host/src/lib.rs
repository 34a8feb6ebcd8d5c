//! The host half of the stack: TCP's control plane, sockets, and the driver's end of the contract.
//!
//! A [`Host`] is one core's stack. It owns every connection; the device (crate `nic`) only
//! completes what the host promised. It is sans-IO: the caller feeds it the device's events and the
//! time, and takes operations out.
//!
//! | module | what it does |
//! |---|---|
//! | [`host`](Host) | the contract's end: events in, operations out, who gets which packet |
//! | `application` | what runs above a host, as its driver sees it |
//! | `sockets` | the application's end: readiness, reading, writing, `offload_*` |
//! | `passive` | connections that begin: listeners, SYN cache, cookies, TIME-WAIT |
//! | `hand_over` | connections that the device sets up and tears down |
//! | `quasi` | connections of one transaction, without a TCB |
//! | `splice` | connections that the device relays between: `nsplice` |
//! | `tcp` | TCP by role |
//! | `udp` | UDP sockets, and the operations of QUIC's offload |
//! | `l5p` | protocols above TCP: TLS, digests of NVMe/TCP |
//! | `files` | file handles, and the software path for what the device does not send |
//! | `extents` | file content for protocols that are spoken above UDP sockets |
//! | `net` | addresses, neighbours, ICMP |
//! | `outbox` | what leaves |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

extern crate alloc;

mod api;
mod application;
mod config;
mod counters;
mod ending;
mod extents;
mod files;
mod hand_over;
mod hash;
mod host;
mod l5p;
mod limit;
mod linger;
mod namespaces;
mod net;
mod outbox;
mod passive;
mod quasi;
mod rare;
mod sockets;
mod splice;
mod table;
mod tcp;
mod udp;

pub use api::{
    ConnectError, FaultScope, FileId, FileKind, FileStat, Listen, ListenError, ListenerId,
    ListenerOption, Notice, NvmeInfo, Readiness, SendError, SocketError, SocketId, SocketInfo,
    SocketOption, SpliceEnd, SpliceError, SpliceId, SpliceMeta, TlsInfo,
};
pub use application::Application;
pub use config::{Algorithm, Cidr, Config, FirstNumbers, TcpConfig};
pub use counters::HostCounters;
pub use extents::{DiskToken, DiskUser, ExtentDone, ExtentRead};
pub use host::Host;
pub use tcp::congestion::{Congestion, RenoGrowth};
/// NVMe over TCP.
pub mod nvme {
    pub use crate::l5p::nvme_tcp::tx::PduData;
    pub use crate::l5p::nvme_tcp::{
        Ended, Incoming, Initiate, Negotiated, Serve, Source, Transport,
    };
}
pub use l5p::tls::{Alert, TlsClient, TlsDirection, TlsKeys, TlsSecrets, TlsServer, TlsVersion};
pub use udp::{UdpId, UdpReceived, UdpSend};
