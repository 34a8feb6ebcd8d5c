//! A stack on threads: links, devices, hosts and an application, with the options, control socket,
//! metrics, access log, signals and drain that all programs of this project share.
//!
//! Used by `outboard serve`, `proxy` and `nvme`, and by programs that embed a stack with their own
//! [`host::Application`] (`crates/stack/examples/echo.rs`). The crates whose types they need are
//! exported here:
//!
//! ```no_run
//! # fn main() -> Result<(), outboard_stack::Failure> {
//! outboard_stack::Stack::builder()
//!     .link("tap:ob0".parse().expect("a link's name"))
//!     .application(|_queue| Ok(())) // makes the application of each queue
//!     .run()
//! # }
//! ```
//!
//! For each queue there is a host thread and a device thread, joined by rings (`threads`). Crate
//! `node` defines the order in which they call host, device and application; sockets belong to the
//! host; links and disks are those of crate `io`. This crate opens them, and depends on no
//! application.
#![forbid(unsafe_code)]

/// Times, sequence numbers and counters, for applications.
pub use base;
/// Sockets, and the trait of an application.
pub use host;

mod alarms;
mod assigned_addrs;
mod attach;
mod balance;
mod builder;
mod confinement;
pub mod control;
mod device;
mod hooks;
mod host_disk;
mod limits;
mod link;
pub mod listener;
mod log;
mod machine;
mod network;
mod nic_process;
mod no_disk;
mod open_failure;
mod option_files;
mod options;
mod record;
mod running;
mod signals;
mod supervisor;
mod take_over;
mod threads;

pub use alarms::alarms;
pub use attach::{NicAddress, RootDirectory};
pub use builder::{Builder, QueueSetup};
pub use cli::{Failure, exit_code};
pub use confinement::{Confinement, ConfinementOptions};
pub use io::confinement::ConfinedFiles;
pub use limits::{ConnectionLimits, LimitOptions};
pub use link::{BackendLink, LinkName, open_links};
pub use network::Network;
pub use nic_process::{AttachListener, NicProcess, OpenRoot, RunningNic};
pub use options::{
    AddrSource, CongestionControl, FaultOptions, MtuProbing, Offloads, QueueBalance, StackOptions,
    Switch, ThreadsPerQueue,
};
pub use running::Stack;
pub use signals::Signals;
pub use threads::{CryptoThreads, MessageSender, spawn};

/// Returns a disk without files, for a stack that reads none.
#[must_use]
pub fn no_disk() -> Box<dyn io::disk::Disk> {
    no_disk::NoDisk::boxed()
}

/// Maximum number of half-open and unaccepted connections of a listener.
pub const BACKLOG: usize = 4096;
