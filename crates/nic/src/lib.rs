//! The device half of Outboard: a NIC as a sans-I/O state machine.
//!
//! [`Device`] takes frames from a link, operations from hosts and completions from a disk, and
//! returns frames, events and disk requests. A device belongs to one worker thread; its driver (the
//! program's device thread, a simulation, a benchmark) owns the rings, the link and the disk. The
//! device uses no operating system, clock or global state: time is passed in as `now`, randomness
//! as a seed.
//!
//! - `pipeline` receives (parses, verifies checksums, selects queues) and transmits (checks,
//!   completes, segments);
//! - `flow` keeps the transmits of each flow in the order of the ring while some of them wait;
//! - `crypto_jobs` hands encryption and decryption to workers, if there are any;
//! - `engine` has the trait of engines and one folder per offload: `file` (IO-TCP), `l5o` with
//!   `tls` and `nvme_tcp` (Autonomous NIC Offloads), `setup`, `teardown` and `splice` (AccelTCP),
//!   `quic` (NiQUIC), and `count`;
//! - `switch` shares a link among the devices of several programs.
//!
//! Input from rings, link and disk is untrusted: malformed input is counted and dropped, memory is
//! bounded by [`DeviceConfig`], and no input causes a panic. The device has state only of TCP
//! connections that were handed to it: acknowledgment, retransmission and congestion control of all
//! others are the host's.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

extern crate alloc;

mod config;
mod counters;
mod crypto_jobs;
mod device;
mod engine;
mod flow;
mod pipeline;
pub mod switch;
pub mod table_memory;

pub use config::{
    DDP_BUFFERS_MAX, DecompressConfig, DeviceConfig, FileConfig, L5oConfig, LONG_TRANSMIT_BYTES,
    QuicConfig, SetupConfig, SpliceConfig, TeardownConfig,
};
pub use crypto_jobs::{CryptoJob, CryptoWorkers};
pub use device::Device;
pub use engine::ALARMS;
pub use engine::splice::SpliceInfo;

#[cfg(test)]
mod tests;
