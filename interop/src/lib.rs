//! What the tests against real programs share: namespaces, the server as a child, curl, files, and
//! Linux in a virtual machine.
//!
//! Called by `interop/tests`. The tests run the program as users get it and talk to it with
//! programs that we did not write, over a TAP device and the kernel's TCP. Each test has a network
//! namespace of its own, so that all of them run side by side and none needs the machine's network;
//! without root they get a user namespace as well. Every process that is started here is ended by
//! its id, or ends by itself when the test's process does; every file lies in a folder that goes
//! with the test.
//!
//! Helpers panic where something is wrong: a test has nobody to give an error to. Nothing here
//! sleeps: what is waited for is a line, an end of file or a child, and time-outs only keep a
//! broken program from blocking forever.
#![forbid(unsafe_code)]

pub mod counters;
mod curl;
mod daemon;
mod files;
mod netns;
mod nvme;
pub mod quic;
mod relay;
mod server;
mod tool;
mod vm;

pub use counters::Counters;
pub use curl::{Download, Paused, Response, Url};
pub use daemon::Daemon;
pub use files::{Files, pattern, sha256};
pub use netns::Netns;
pub use nvme::{fio_report, nvme_initiator, nvme_target};
pub use relay::{Link, LinkConfig, LinkCounts};
pub use server::{ADDR, Ended, PEER, Server, outboard};
pub use tool::{Watchdog, finish, good, printed, run, said};
pub use vm::{NVME_WORK, VM_ADDR, Vm};
