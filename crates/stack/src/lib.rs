//! A stack on threads: links, devices, hosts and an application, with the options, control socket,
//! metrics, access log, signals and drain that every program of this project has.
//!
//! `outboard serve`, `proxy` and `nvme` are built on it, and so is a program that embeds a stack
//! with its own [`host::Application`] (`crates/stack/examples/echo.rs`); the crates whose types it
//! needs are exported here:
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
//! For each queue there is a host thread and a device thread, joined by rings ([`threads`]). The
//! order in which they call host, device and application is crate `node`'s; sockets are the host's;
//! links and disks are crate `io`'s. This crate opens them, and knows no application.
#![forbid(unsafe_code)]

/// Times, sequence numbers and counters, as applications see them.
pub use base;
/// Sockets, and the trait of an application.
pub use host;

mod alarms;
mod builder;
pub mod control;
mod hooks;
mod link;
pub mod listener;
mod log;
mod no_disk;
mod options;
mod running;
mod signals;
mod threads;

pub use alarms::alarms;
pub use builder::{Builder, QueueSetup};
pub use cli::{Failure, exit_code};
pub use link::{LinkName, open_links};
pub use options::{CongestionControl, FaultOptions, Offloads, Options, Switch, ThreadsPerQueue};
pub use running::Stack;
pub use signals::Signals;
pub use threads::{MessageSender, spawn};

/// Half-open and unaccepted connections that a listener may have.
pub const BACKLOG: usize = 4096;
